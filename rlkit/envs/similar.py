"""What is alike: near-duplicate sessions, and clusters of failures with a label that a person can read."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlkit.envs.failures import Failure, Fault, Kind, is_error
from rlkit.logs.trace import Message, Trace

if TYPE_CHECKING:
    import pandas as pd

NEAR = 0.9
"""Prompts from this similarity on (the share of characters that match, by edit distance) are near-duplicates."""
APART = 0.75
"""Cosine distance from which two groups of failures are two clusters (average linkage)."""
_MOST = 1500  # different failures of one kind that are clustered at once; the rest join the nearest cluster

_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\S+@\S+|https?://\S+|[a-z\d_]*\d[a-z\d_]*", re.IGNORECASE)
_PUNCTUATION = re.compile(r"[^\w#]+")


def normal_prompt(messages: Iterable[Message]) -> str:
    """What the user asked first, without what differs from one customer to the next: case, punctuation, and every word
    with a digit in it, address or URL, which become `#`."""
    text = next((m.content for m in messages if m.role == "user" and m.content), "")
    text = _ID.sub("#", text.casefold())
    if not text.isascii():  # marks belong to the letters they stand on
        text = "".join(c if c.isalnum() or c in "#_" or unicodedata.category(c)[0] == "M" else " " for c in text)
    return _PUNCTUATION.sub(" ", text).strip() if text.isascii() else " ".join(text.split())


def skeleton(trace: Trace) -> str:
    """The tools called, in order, as `get_order > refund! > refund`: `!` marks an error, `×3` a repetition."""
    steps: list[tuple[str, int]] = []
    for call, result in trace.answered:
        step = call.name + "!" * (result is not None and is_error(result))
        if steps and steps[-1][0] == step:
            steps[-1] = (step, steps[-1][1] + 1)
        else:
            steps.append((step, 1))
    return " > ".join(step + (f" ×{count}" if count > 1 else "") for step, count in steps)


def near_duplicates(texts: Sequence[str], blocks: Sequence[str] | None = None, threshold: float = NEAR) -> list[int]:
    """The group of each text, numbered from 0: texts of one block whose similarity reaches `threshold`, directly or
    through others, are one group.

    Every pair of different texts within a block is compared: quadratic, seconds for 5,000 on one core.
    """
    from rapidfuzz import fuzz, process

    blocks = blocks or [""] * len(texts)
    unique = {key: n for n, key in enumerate(dict.fromkeys(zip(blocks, texts, strict=True)))}
    parent = list(range(len(unique)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    members: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (block, text), node in unique.items():
        members[block].append((text, node))
    for block_members in members.values():
        words = [text for text, _ in block_members]
        for start in range(0, len(words), 512):
            scores = process.cdist(
                words[start : start + 512], words[start:], scorer=fuzz.ratio, score_cutoff=100 * threshold, workers=1
            )
            for i, j in np.argwhere(scores > 0):
                a, b = root(block_members[start + i][1]), root(block_members[start + j][1])
                parent[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    roots = (root(unique[key]) for key in zip(blocks, texts, strict=True))
    return [numbers.setdefault(node, len(numbers)) for node in roots]


def duplicate_sessions(traces: Sequence[Trace], threshold: float = NEAR) -> list[int]:
    """The group of each session: the same tools called in the same order, and nearly the same prompt."""
    prompts = [normal_prompt(trace.messages) for trace in traces]
    return near_duplicates(prompts, [skeleton(trace) for trace in traces], threshold)


@dataclass(frozen=True)
class Cluster:
    """Failures of one kind that look alike."""

    label: str
    """`gave_up: refund! > escalate, "never arrived"`: kind, most frequent skeleton, telling words of the prompts."""
    fault: Fault
    kind: Kind
    members: tuple[int, ...]
    """Positions in what was clustered, the most typical first."""

    def __len__(self) -> int:
        return len(self.members)


def cluster_failures(failed: Sequence[tuple[Trace, Failure]], apart: float = APART) -> list[Cluster]:
    """Clusters of failures, the largest first: within a fault and kind, by tools called, errors met and words of the
    prompt (TF-IDF, average linkage on cosine distance).

    Every failure is in just one cluster. The same input gives the same clusters.
    """
    groups: dict[tuple[Fault, Kind], list[int]] = defaultdict(list)
    for n, (_, failure) in enumerate(failed):
        groups[failure.fault, failure.kind].append(n)
    words = [set(normal_prompt(trace.messages).split()) for trace, _ in failed]
    steps = [skeleton(trace) for trace, _ in failed]
    common = Counter(word for prompt in words for word in prompt)
    clusters = []
    for (fault, kind), members in groups.items():
        documents = [_features(words[n], steps[n]) for n in members]
        for group in _linked(documents, apart):
            of = [members[i] for i in group]
            label = _label(kind, [steps[n] for n in of], [words[n] for n in of], common, len(failed))
            clusters.append(Cluster(label, fault, kind, tuple(of)))
    return sorted(clusters, key=lambda cluster: (-len(cluster), cluster.label))


def cluster_table(clusters: Sequence[Cluster], failed: Sequence[tuple[Trace, Failure]]) -> pd.DataFrame:
    """A row a cluster: how many, whose fault, what kind, and the most typical session with its evidence."""
    import pandas as pd

    rows = [
        {"failures": len(c), "fault": c.fault, "kind": c.kind, "example": failed[c.members[0]][0].id,
         "evidence": failed[c.members[0]][1].evidence}
        for c in clusters
    ]  # fmt: skip
    columns = ["failures", "fault", "kind", "example", "evidence"]
    return pd.DataFrame(rows, pd.Index([c.label for c in clusters], name="cluster"), columns=columns)


def _features(words: set[str], steps: str) -> list[str]:
    """Words of the prompt; where tools were called each of them, and twice the way as a whole, which weighs most."""
    way = [*(f"tool:{step}" for step in steps.split(" > ")), f"way:{steps}", f"way:{steps}"] if steps else []
    return [*sorted(words - {"#"}), *way]


def _linked(documents: Sequence[list[str]], apart: float) -> list[list[int]]:
    """Positions of documents in groups, the most typical of each group first."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.feature_extraction.text import TfidfVectorizer

    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for n, document in enumerate(documents):
        places[tuple(document)].append(n)
    kept = sorted(places, key=lambda document: (-len(places[document]), document))
    if len(kept) < 2:
        return [list(range(len(documents)))]
    vectors = TfidfVectorizer(analyzer=lambda tokens: tokens or ("",)).fit_transform(kept)
    first = vectors[:_MOST].toarray()
    cut = AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=apart)
    labels = cut.fit_predict(first)
    centres = np.stack([first[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    nearest = np.concatenate([labels, (vectors[_MOST:] @ centres.T).argmax(axis=1)]).astype(int)
    groups = []
    for label in range(len(centres)):
        (mine,) = np.nonzero(nearest == label)
        typical = mine[np.argsort(-(vectors[mine] @ centres[label]), kind="stable")]
        groups.append([n for at in typical for n in places[kept[at]]])
    return groups


def _label(kind: Kind, steps: Sequence[str], words: Sequence[set[str]], common: Counter[str], total: int) -> str:
    ((way, _),) = Counter(steps).most_common(1)
    here = Counter(word for prompt in words for word in prompt)

    def telling(word: str) -> float:
        """How much more often here than elsewhere, for words that at least a third of the cluster has."""
        share = here[word] / len(words)
        return share * np.log(share * total / common[word]) if share >= 1 / 3 and len(word) > 2 else 0.0

    best = [word for word in sorted(here, key=lambda word: (-telling(word), word))[:3] if telling(word) > 0.05]
    return f"{kind}: {way or 'no call'}" + (f', "{" ".join(best)}"' if best else "")
