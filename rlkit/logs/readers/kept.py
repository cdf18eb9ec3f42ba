"""What our writers keep of a trace under the key `rlkit` where a format has no place for it; and ids for the rest."""

from __future__ import annotations

from typing import Any

from rlkit.logs.readers.openai_chat import Links, parse_links, parse_tools
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.report import Notes


def kept_in(value: Any) -> dict[str, Any] | None:
    """The object under `rlkit`, where one is."""
    kept = value.get("rlkit") if isinstance(value, dict) else None
    return kept if isinstance(kept, dict) else None


def kept_links(attributes: dict[str, Any]) -> Links:
    """`parse_links` of a span's flat attributes."""
    return parse_links({key: attributes.get(f"rlkit.{key}") for key in ("parent_id", "relation", "parent_call_id")})


def restored(kept: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """All fields of the `Trace` but the messages (and the id, where none was kept), as `writers.openai` writes them."""
    parent, relation, parent_call = parse_links(kept)
    metadata = kept.get("metadata", {})
    if not isinstance(metadata, dict):
        notes.add("metadata_wrong_type", "rlkit.metadata")
        metadata = {}
    fields: dict[str, Any] = {
        "tools": parse_tools(kept.get("tools"), notes, "rlkit.tools"),
        "outcome": parse_outcome(kept.get("outcome"), "outcome", notes, "rlkit.outcome"),
        "parent_id": parent,
        "relation": relation,
        "parent_call_id": parent_call,
        "metadata": metadata,
    }
    if isinstance(kept.get("id"), str) and kept["id"]:
        fields["id"] = kept["id"]
    return fields


class Ids:
    """Gives every session an id of its own where a format's ids are only unique within a run: `3/0`, then `3/0~2`."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.copies: dict[str, int] = {}

    def new(self, base: str, notes: Notes) -> str:
        """`base`, or where it was used before the next number."""
        given, copy = base, self.copies.get(base, 1)
        while given in self.given:
            copy += 1
            given = f"{base}~{copy}"
        self.copies[base] = copy
        if given != base:
            notes.add("id_repeated", detail=f"The id {base!r} was used before; this is {given!r}.")
        self.given.add(given)
        return given
