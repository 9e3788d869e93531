# SPDX-License-Identifier: Apache-2.0
"""The last day of places as pictures, and the figures beside them. SVG that uses the style of the page. No I/O here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from html import escape

from portcall.farm._day import STEP, STEPS, Day, Doing, Kind, PlaceDay, Run, use_of

_COLORS = 6  # of users, who are told apart by them; all others have one
_WORDS: dict[Kind, str] = {"used": "in use", "idle": "idle", "out": "out of use", "offline": "offline"}
_HOURS = (24, 18, 12, 6)
_TICKS = "".join(f"M{STEPS * n // 4} 0v10" for n in (1, 2, 3))
AXIS = f'<p class="axis dim">{"".join(f"<span>{h} h ago</span>" for h in _HOURS)}<span>now</span></p>'


class Shown:
    """The last day of some places, as it is shown.

    Parameters:
        places: their names.
    """

    def __init__(self, day: Day, places: Iterable[str], now: float) -> None:
        self.places: dict[str, PlaceDay] = {}
        self._users: dict[str, float] = {}
        for id in places:
            found = day.place(id, now)
            if found is not None:
                self.places[id] = found
                for doing, seconds in found.seconds.items():
                    if doing.user:
                        self._users[doing.user] = self._users.get(doing.user, 0) + seconds
        most = sorted(sorted(self._users, key=self._users.__getitem__)[-_COLORS:])
        self._color = {user: f"u{number}" for number, user in enumerate(most)}
        self._now = now
        self.wait = day.median_wait(now)

    def picture(self, id: str, whole: bool = False) -> str:
        """Return the day of a place as SVG; the title of each part says what it is.

        Parameters:
            whole: each part has a title of its own, with its time.
        """
        found = self.places.get(id)
        runs = found.runs if found else []
        parts: dict[Doing, list[Run]] = {}
        for run in runs:
            parts.setdefault(run.doing, []).append(run)
        paths = [([run], self._when(run)) for run in runs] if whole else [(each, "") for each in parts.values()]
        drawn = "".join(
            f'<path class="{self._class(each[0].doing)}" d="{"".join(map(_box, each))}">'
            f"<title>{escape(words(each[0].doing) + when)}</title></path>"
            for each, when in paths
        )
        said = ", ".join(f"{_WORDS[kind]} {span(found.total(kind))}" for kind in _WORDS if found and found.total(kind))
        label = escape(f"the last day: {said or 'nothing is known'}")
        return (
            f'<svg class="day" role="img" aria-label="{label}" viewBox="0 0 {STEPS} 10" preserveAspectRatio="none">'
            f'{drawn}<path class="tick" d="{_TICKS}"/></svg>'
        )

    def _when(self, run: Run) -> str:
        start = (int(self._now // STEP) - STEPS + 1) * STEP
        first, last = start + run.first * STEP, min(start + run.last * STEP, self._now)
        clock = (time.strftime("%H:%M", time.localtime(at)) for at in (first, last))
        return f", {' to '.join(clock)}"

    def _class(self, doing: Doing) -> str:
        return self._color.get(doing.user, "many") if doing.kind == "used" else doing.kind

    def use(self, id: str = "") -> str:
        """Return the use of a place, or of all, in per cent; empty where none could be used."""
        share = use_of([day for place, day in self.places.items() if id in ("", place)])
        return "" if share is None else f"{100 * share:.0f}&nbsp;%"

    def legend(self) -> str:
        """Return what the colours mean, with the users' hours."""
        said = [(color, user, span(self._users[user])) for user, color in self._color.items()]
        others = sum(self._users.values()) - sum(self._users[user] for user in self._color)
        said += [("many", "others", span(others))] if others else []
        said += [(kind, word, "") for kind, word in _WORDS.items() if kind != "used"]
        return '<p class="legend">' + "".join(
            f'<span><i class="{color}"></i>{escape(name)}{f" <small>{much}</small>" if much else ""}</span>'
            for color, name, much in said
        ) + "</p>"  # fmt: skip


def _box(run: Run) -> str:
    width = run.last - run.first
    return f"M{run.first} 0h{width}v10h-{width}z"


def words(doing: Doing) -> str:
    return f"{_WORDS[doing.kind]} by {doing.user or 'several'}" if doing.kind == "used" else _WORDS[doing.kind]


def span(seconds: float) -> str:
    """Return a time in hours and minutes, or in seconds where it is short."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(filter(None, (f"{hours} h" * bool(hours), f"{minutes} min" * bool(minutes))))


def day_facts(shown: Shown, id: str) -> Mapping[str, str]:
    """Return the figures of a place's day."""
    found = shown.places.get(id)
    if found is None:
        return {}
    users = sorted(((s, doing.user) for doing, s in found.seconds.items() if doing.user), reverse=True)
    return {
        "use, last day": shown.use(id),
        "users, last day": escape(", ".join(f"{user} {span(seconds)}" for seconds, user in users[:5])),
    }
