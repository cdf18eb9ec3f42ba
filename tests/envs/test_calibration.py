"""Calibration: hand-computed values, honest intervals, and each planted flaw found by the statistic meant for it."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from rlkit.envs.calibration import (
    Calibration,
    calibrate,
    cohen_kappa,
    corrected_interval,
    corrected_rate,
    length_bias,
    leniency,
    position_bias,
    read_labels,
    rerun_noise,
    sensitivity,
    specificity,
    swap_consistency,
)
from rlkit.envs.grading import GraderDown
from rlkit.envs.judge import Judge, Messages
from rlkit.envs.mining import mine
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.examples.support.judges import CRITERIA, FLAWS, Flaw, planted_judge, rivals, truth
from rlkit.examples.support.production import production_sessions
from rlkit.logs.trace import Trace
from rlkit.stats import Interval

# 20 sessions: of 12 successes the judge passes 9, of 8 failures 2.
LABELS = [True] * 12 + [False] * 8
VERDICTS = [True] * 9 + [False] * 3 + [True] * 2 + [False] * 6


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def inside(value: float, interval: Interval) -> bool:
    return interval.low <= value <= interval.high


# --- labels ---------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.booleans(), max_size=8))
def test_labels_survive_either_format(tmp_path_factory: Any, labels: dict[str, bool]) -> None:
    folder = tmp_path_factory.mktemp("labels")
    with open(folder / "l.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trace_id", "label"])
        writer.writerows((name, "pass" if label else "FAIL") for name, label in labels.items())
    assert read_labels(folder / "l.csv") == labels
    lines = [json.dumps({"trace_id": name, "label": label}, ensure_ascii=False) for name, label in labels.items()]
    (folder / "l.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    if labels:
        assert read_labels(folder / "l.jsonl") == labels


def test_every_word_and_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    rows = ["a,true,x", "b,False,", "c,1,", "d,0,", "e,PASS,", "f,fail,", "g,success,", "h,failure,", "a,1,again"]
    path.write_text("\ufefftrace_id,label,who\n" + "\n".join(rows), encoding="utf-8")
    assert read_labels(path) == dict(zip("abcdefgh", [True, False] * 4, strict=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,label\na,1\n", r":1: no column trace_id in the header"),
        ("", r":1: no column label, trace_id"),
        ("trace_id,label\na,1\nb,maybe\n", r":3: label: expected one of true, .* found 'maybe'"),
        ("trace_id,label\na\n", r":2: label: .* found None"),
        ("trace_id,label\n,1\n", r":2: trace_id: expected a text"),
        ("trace_id,label\na,1\nb,1\na,0\n", r":4: label: 'a' was labelled True before"),
        ('trace_id,label\nb,1\n"a"x,1\n', r":3: not CSV"),
        ('{"trace_id": "a", "label": 1}\n{"trace_id": "a"', r":2: not JSON"),
        ('{"trace_id": "a", "label": 0.5}', r":1: label: .* found 0\.5"),
        ('{"trace_id": "a", "label": 2}', r":1: label: .* found 2"),
        ('{"trace_id": 3, "label": true}', r":1: trace_id: .* found 3"),
        ('{"label": true}', r":1: trace_id: .* found None"),
        ('{"trace_id": "a", "label": 1}\n\n[1]', r":3: expected an object"),
    ],
)
def test_bad_labels_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "l").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_labels(tmp_path / "l")


def test_labels_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"trace_id,label\n\xff,1")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_labels(tmp_path / "l")


# --- statistics -----------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    assert sensitivity(VERDICTS, LABELS).mean == 9 / 12
    assert specificity(VERDICTS, LABELS).mean == 6 / 8
    assert leniency(VERDICTS, LABELS).mean == 0
    # agreed 15/20; by chance 11/20 · 12/20 + 9/20 · 8/20 = 0.51
    assert cohen_kappa(VERDICTS, LABELS).mean == pytest.approx((0.75 - 0.51) / (1 - 0.51))
    # (11/20 + 0.75 - 1) / (1.5 - 1) = 0.6, which is the share of successes
    assert corrected_rate(11 / 20, 0.75, 0.75) == pytest.approx(0.6)
    assert rerun_noise([True, True, False, False], [True, False, True, False]).mean == 0.5
    assert swap_consistency(["a", "b", "tie", "a"], ["a", "b", "a", "b"]).mean == 0.5
    assert position_bias(["a", "b", "tie", "a"], ["a", "b", "a", "b"]).mean == 0  # one leans to each side
    assert position_bias(["a", "a"], ["b", "a"]).mean == 0.5


def test_newcombe_published_example() -> None:
    # Newcombe 1998, table II (a): 56/70 - 48/80 by method 10 is 0.2000 in [0.0524, 0.3339]
    labels = [True] * 70 + [False] * 80
    verdicts = [True] * 56 + [False] * 14 + [False] * 48 + [True] * 32
    found = leniency(verdicts, labels)
    assert (found.low, found.mean, found.high) == pytest.approx((0.0524, 0.2, 0.3339), abs=5e-5)


def test_length_bias_by_hand() -> None:
    # Among failures: passed 5, 1; failed 3, 3 → two pairs for, two against. Among successes: passed 9, failed 2.
    labels = [False] * 4 + [True] * 2
    found = length_bias([True, True, False, False, True, False], labels, [5, 1, 3, 3, 9, 2])
    weights = 3 * 2 * 2 / 5, 3 * 1 * 1 / 3
    assert found.mean == pytest.approx(weights[1] / sum(weights))
    assert math.isnan(length_bias(labels, labels, [1, 2, 3, 4, 5, 6]).mean)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_kappa_is_sklearns(pairs: list[tuple[bool, bool]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    found = cohen_kappa(a, b)
    assert -1 <= found.low <= found.high <= 1
    if len({*a, *b}) == 1:
        assert math.isnan(found.mean)
    else:
        assert found.mean == pytest.approx(cohen_kappa_score(a, b))
        assert inside(found.mean, found)


def test_perfect_agreement_on_a_few_is_not_certain() -> None:
    few, many = cohen_kappa(LABELS[8:16], LABELS[8:16]), cohen_kappa(LABELS * 10, LABELS * 10)
    assert few.mean == many.mean == 1
    assert few.low < 0.5 < 0.95 < many.low


def test_a_seed_gives_the_same_interval_and_clusters_widen_it() -> None:
    a, b = VERDICTS * 5, LABELS * 5
    assert cohen_kappa(a, b, seed=3) == cohen_kappa(a, b, seed=3)
    alone, clustered = cohen_kappa(a, b), cohen_kappa(a, b, list(range(20)) * 5)
    assert clustered.high - clustered.low > 1.7 * (alone.high - alone.low)


def test_a_judge_no_better_than_chance_corrects_nothing() -> None:
    with pytest.raises(ValueError, match="no better than chance"):
        corrected_rate(0.5, 0.4, 0.6)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        corrected_rate(math.nan, 0.9, 0.9)
    assert [corrected_rate(q, 0.9, 0.8) for q in (0.1, 0.95)] == [0, 1]
    poor = corrected_interval((50, 100), (6, 10), (5, 10))
    assert (poor.low, poor.high) == (0, 1)


def test_the_correction_carries_the_doubt_about_the_judge() -> None:
    widths = [
        i.high - i.low for i in (corrected_interval((600, 1000), (9 * k, 10 * k), (8 * k, 10 * k)) for k in (2, 50))
    ]
    assert widths[0] > 3 * widths[1]


def test_nothing_to_compute_from() -> None:
    for function in (cohen_kappa, sensitivity, specificity, leniency, rerun_noise):
        with pytest.raises(ValueError, match="at least one"):
            function([], [])
        with pytest.raises(ValueError, match="as many of both"):
            function([True], [])
    assert math.isnan(position_bias([], []).mean)
    assert math.isnan(leniency([True], [True]).mean)


def coverage(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def test_intervals_cover_what_they_should() -> None:
    """120 labelled sessions, 55 % successes, TPR .9, TNR .75; 300 more without labels."""
    random, tpr, tnr, base = rng(0), 0.9, 0.75, 0.55
    agreed, passed = base * tpr + (1 - base) * tnr, base * tpr + (1 - base) * (1 - tnr)
    chance = passed * base + (1 - passed) * (1 - base)
    kappa, found = (agreed - chance) / (1 - chance), dict[str, list[bool]]()
    for seed in range(300):
        labels = random.random(420) < base
        verdicts = np.where(labels, random.random(420) < tpr, random.random(420) > tnr)
        y, x = labels[:120].tolist(), verdicts[:120].tolist()
        hits, rejections = int((verdicts & labels)[:120].sum()), int((~verdicts & ~labels)[:120].sum())
        counts = (int(verdicts[120:].sum()), 300), (hits, sum(y)), (rejections, 120 - sum(y))
        lengths = random.random(120).tolist()
        for name, true, interval in (
            ("kappa", kappa, cohen_kappa(x, y, seed=seed)),
            ("leniency", tpr - tnr, leniency(x, y)),
            ("corrected", base, corrected_interval(*counts, seed=seed)),
            ("length", 0.0, length_bias(x, y, lengths)),
        ):
            found.setdefault(name, []).append(inside(true, interval))
    assert {name: coverage(hits) for name, hits in found.items() if not 0.92 <= coverage(hits) <= 0.98} == {}


def test_the_position_interval_covers() -> None:
    random, hits = rng(1), list[bool]()
    for _ in range(2000):
        leans = random.choice([1, 0, -1], size=60, p=[0.2, 0.75, 0.05])
        forward: list[Any] = ["a" if lean == 1 else "b" if lean == -1 else "tie" for lean in leans]
        backward: list[Any] = ["b" if lean == 1 else "a" if lean == -1 else "tie" for lean in leans]
        hits.append(inside(0.15, position_bias(forward, backward)))
    assert 0.93 <= coverage(hits) <= 0.97


# --- planted flaws --------------------------------------------------------------------------------------------------

MEANT = {
    "none": [],
    "lenient": ["leniency"],
    "length_bias": ["length_bias"],
    "position_bias": ["position_bias"],
    "noise": ["rerun_noise"],
    "format_errors": ["unusable"],
}
Cases = list[tuple[Task, Trace]]


@pytest.fixture(scope="module")
def desk() -> tuple[Cases, dict[str, bool], list[tuple[Task, Trace, Trace]]]:
    mined = mine(production_sessions(250), support.task_from_trace, support.final_state, support.rubric)
    cases = [(one.task, one.trace) for one in mined.sessions]
    return cases, {trace.id: all(truth(task, trace).values()) for task, trace in cases}, rivals(cases[:120])


def calibrated(desk: Any, flaw: Flaw, seed: int = 0, size: float = 0.3, **options: Any) -> Calibration:
    cases, labels, pairs = desk
    known = [*cases, *((task, trace) for task, *both in pairs for trace in both)]
    judge = Judge(planted_judge(flaw, known, size, seed), CRITERIA, model=f"synthetic {flaw}", max_errors_in_a_row=50)
    return calibrate(judge, cases, labels, **{"swaps": pairs, **options})


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_planted_flaw_is_found_by_the_statistic_meant_for_it(desk: Any, flaw: Flaw) -> None:
    assert calibrated(desk, flaw).flaws == MEANT[flaw]


def test_the_size_of_the_flaw_is_found(desk: Any) -> None:
    lenient, noise = calibrated(desk, "lenient", swaps=()), calibrated(desk, "noise", swaps=(), reruns=2)
    assert inside(0.3, lenient.leniency.value)
    assert inside(0.7, lenient.specificity.value)
    assert noise.rerun_noise is not None
    assert inside(2 * 0.3 * 0.7, noise.rerun_noise.value)
    assert noise.rerun_noise.n == 2 * len(desk[0])
    share = sum(desk[1].values()) / len(desk[1])
    for found in (lenient, noise):
        assert inside(share, found.corrected_rate.value)
    assert inside(0.3, calibrated(desk, "format_errors", swaps=()).unusable.value)
    position = calibrated(desk, "position_bias", reruns=0)
    assert position.position_bias is not None
    assert inside(0.3, position.position_bias.value)
    assert position.rerun_noise is None


def test_a_sound_judge_rarely_looks_flawed_and_no_flaw_looks_like_another(desk: Any) -> None:
    """Over seeds: what is found beside the flaw meant is no more than chance allows."""
    small = desk[0][:150], desk[1], desk[2][:70]
    wrong = [name for flaw in FLAWS for seed in (1, 2) for name in extra(small, flaw, seed)]
    assert len(wrong) <= 1  # 25 seeds of each flaw, 250 sessions: three in all, each beside noise


def extra(desk: Any, flaw: Flaw, seed: int) -> list[str]:
    found = calibrated(desk, flaw, seed).flaws
    assert set(MEANT[flaw]) <= set(found)
    return [name for name in found if name not in MEANT[flaw]]


def test_counts_and_the_table(desk: Any) -> None:
    cases, _, pairs = desk
    found = calibrated(desk, "format_errors")
    assert found.calls == 2 * len(cases) + 2 * len(pairs)
    assert set(found.errors) == {"empty", "no_json", "missing", "wrong_type"}
    assert found.unusable.n == len(cases)
    assert found.kappa.n == len(cases) * (1 - found.unusable.value.mean) < len(cases)
    table = found.table()
    assert list(table.columns) == ["value", "low", "high", "n", "flaw", "reads"]
    assert list(table.index[table["flaw"]]) == ["unusable"]
    assert table["reads"].map(len).gt(10).all()
    assert len(calibrated(desk, "none", swaps=(), reruns=0).table()) == 7


def test_sessions_without_a_label_count_towards_the_pass_rate(desk: Any) -> None:
    cases, labels, _ = desk
    some = dict(list(labels.items())[:100]) | {"elsewhere": True}
    found = calibrated((cases, some, []), "lenient")
    assert (found.kappa.n, found.corrected_rate.n, found.labels_unused) == (100, len(cases), 1)
    assert inside(sum(labels.values()) / len(labels), found.corrected_rate.value)


def test_the_same_again(desk: Any) -> None:
    assert calibrated(desk, "noise") == calibrated(desk, "noise")


def test_what_cannot_be_calibrated(desk: Any) -> None:
    cases, labels, _ = desk
    with pytest.raises(ValueError, match="share the trace id"):
        calibrated((cases[:1] * 2, labels, []), "none")
    with pytest.raises(ValueError, match="has both a label and a verdict"):
        calibrated((cases, {}, []), "none")

    async def down(messages: Messages) -> str:
        raise ConnectionError("refused")

    with pytest.raises(GraderDown):
        calibrate(Judge(down, CRITERIA), cases, labels)
    with pytest.raises(GraderDown, match="LookupError: 1 sessions that this synthetic judge was never told about"):
        calibrate(Judge(planted_judge("none", cases[:1]), CRITERIA), cases, labels)


def test_planted_judges_are_declared() -> None:
    flaw: Any = "moody"
    with pytest.raises(ValueError, match="flaw must be one of none, lenient"):
        planted_judge(flaw, [])
    with pytest.raises(ValueError, match=r"size in \[0, 1\]"):
        planted_judge("noise", [], 1.5)
