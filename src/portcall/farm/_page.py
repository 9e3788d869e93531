# SPDX-License-Identifier: Apache-2.0
"""The farm's pages, as text. No I/O here."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from portcall.bench import format_size
from portcall.farm._day_page import AXIS, Shown, day_facts, span
from portcall.farm._page_style import SCRIPT, STYLE

_AWAY = 120.0  # seconds after which somebody should look at a place that is away
_USED = ("offered", "leased", "cleaning")
_FACTS = ("arch", "cores", "ram", "os", "kernel", "libc", "host", "portcall", "place")  # tags with rows of their own
_HIDDEN = ("kernel", "libc", "host", "portcall", "place")  # tags that the page of the place has
_WORD = re.compile(r"[\w.:@/+-]+")  # which stands in a constraint without quotes

May = Callable[[Mapping[str, Any]], bool]  # whether the viewer may give a lease back


def page(title: str, main: str, *, live: bool = False, user: str = "", links: bool = True) -> str:
    """Return a whole page.

    Parameters:
        live: it follows the farm.
        user: who looks on with a token; empty where there is none.
        links: it leads to other pages.
    """
    leave = '<form method="post" action="/logout"><button>log out</button></form>'
    who = f'<span class="who">{escape(user)}{leave}</span>' if user else ""
    more = '<a href="/history">history</a>' if links else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<style>{STYLE}</style><body{" data-live=1" * live}><header><h1><a href="/">portcall farm</a></h1>'
        f'{more}<span id="live" role="status"></span>{who}</header>'
        f"<main>{main}</main><script>{SCRIPT}</script></body></html>"
    )


def login(why: str = "", to: str = "/") -> str:
    """Return the page that asks for a token: why the last one did not do, and where to go then."""
    said = f'<p class="warn">{_sentence(why)}</p>' if why else ""
    return page("portcall farm: token", (
        f'<div class="card note">{said}<p>This farm needs a token. <span class="dim">An admin makes one: '
        "portcall farm token NAME</span></p>"
        f'<form method="post" action="/login"><input type="hidden" name="to" value="{escape(to)}">'
        '<input name="token" type="password" aria-label="token" placeholder="token" autocomplete="current-password" '
        "autofocus required><button>open</button></form></div>"
    ), links=False)  # fmt: skip


def pairing(code: str) -> str:
    """Return the page to which a scanned code leads."""
    return page("portcall farm: pairing", (
        '<div class="card note"><p>Let this browser see the farm? The code is good once.</p>'
        f'<form method="post" action="/pair"><input type="hidden" name="code" value="{escape(code)}">'
        "<button>yes</button></form></div>"
    ), links=False)  # fmt: skip


def refused(why: str) -> str:
    """Return the page that says why something was not done."""
    return page(
        "portcall farm", f'<div class="card note"><p class="warn">{_sentence(why)}</p><p><a href="/">back</a></p></div>'
    )


def _sentence(why: str) -> str:
    return f"{escape(why[:1].upper() + why[1:])}."


def table(head: Sequence[str], rows: Iterable[str], none: str, kind: str = "") -> str:
    """Return a table of rows that are HTML already; on a phone each row is a card."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    if not body:
        return f'<p class="none">{escape(none)}</p>'
    names = "".join(f"<th>{name}</th>" for name in head)
    thead = f"<thead><tr>{names}</tr></thead>" if head else ""
    return f'<table class="{kind}">{thead}<tbody>{body}</tbody></table>'


def overview(status: Mapping[str, Any], may_release: May, shown: Shown) -> str:
    """Return the places, leases and waiting requests, and the places' last day."""
    now = status["now"]
    places = sorted(status["places"], key=lambda p: (-_worry(p, now), p["place"]))
    counts = [
        (len(places), "place" if len(places) == 1 else "places", ""),
        (sum(bool(p["free"]) for p in places), "free", ""),
        (sum(p["state"] in _USED for p in places), "in use", ""),
        (status["waiting_total"], "waiting", ""),
        (sum(_worry(p, now) == 2 for p in places), "to look at", "bad"),
    ]
    said = "".join(f'<span class="{kind}"><b>{n}</b> {what}</span>' for n, what, kind in counts if n or not kind)
    said += _figures(shown)
    more = status["waiting_total"] - len(status["waiting"])
    return (
        f'<p class="sum">{said}</p><h2>Places</h2>'
        + table(("place", "state", f"last day{AXIS}", "use", "keys and tags", "user, or why"),
                (_place(p, now, shown) for p in places), "no place has registered yet", "places")
        + (shown.legend() if places else "")
        + "<h2>Leases</h2>"
        + table(("place", "user", "asked for", "since", "time left", "sessions", ""),
                (_lease(x, now, may_release(x)) for x in status["leases"]), "nobody has a place")
        + f"<h2>Waiting<small>{status['waiting_total'] or ''}</small></h2>"
        + table(("", "user", "asked for", "class", "since", "because"),
                (_waiting(x, now) for x in status["waiting"]), "nobody waits")
        + (f'<p class="none">and {more} more</p>' if more > 0 else "")
    )  # fmt: skip


def _figures(shown: Shown) -> str:
    """Return the figures of the last day."""
    use, wait = shown.use(), shown.wait
    said = (
        f'<span title="of the time for which places were there, in the last day"><b>{use}</b> use</span>' if use else ""
    )
    if wait:
        many = f"of {wait[1]} requests that got a place in the last day"
        said += f'<span title="{many}"><b>{span(wait[0])}</b> median wait</span>'
    return said


def _worry(place: Mapping[str, Any], now: float) -> int:
    """Return 2 where somebody must do something about a place, 1 where it may mend itself, else 0."""
    if place["health"] == "bad":
        return 2
    if place["drain"] or place["health"] in ("maintenance", "retired"):
        return 0
    if place["state"] == "offline":
        return 2 if now - place["since"] > _AWAY else 1
    return int(place["health"] in ("suspect", "quarantined"))


def _state(place: Mapping[str, Any], now: float) -> str:
    """Return the state of a place."""
    kind = ("", "warn", "bad")[_worry(place, now)]
    kind = kind or ("free" if place["free"] else "used" if place["state"] in _USED else "")
    return f'<b class="state {kind} {escape(place["state"])}">{escape(place["state"])}</b>'


def _place(place: Mapping[str, Any], now: float, shown: Shown) -> str:
    keys = "".join(f'<span class="key">{escape(key)}</span>' for key in place["keys"])
    tags = "&nbsp;· ".join(escape(word).replace(" ", "&nbsp;") for word in tag_words(place["tags"]))
    why = "; ".join(filter(None, (place["user"], place["health_reason"])))
    why = why or (place["cause"] if place["state"] == "offline" else "")
    health = "drained" if place["drain"] else place["health"]
    health = f" {escape(health)}" if health not in ("good", "unknown") else ""
    state = f"{_state(place, now)}{health} <time>{age(now - place['since'])}</time>"
    return (
        f"<td>{_to_place(place['place'])}</td><td>{state}</td>"
        f'<td class="wide days" data-name="last day">{shown.picture(place["place"])}</td>'
        f'<td class="num" data-name="use">{shown.use(place["place"])}</td>'
        f'<td class="wide tags">{keys}{tags}</td>'
        f'<td class="wide">{escape(why)}</td>'
    )


def _lease(lease: Mapping[str, Any], now: float, mine: bool) -> str:
    where = f"/lease/{quote(lease['lease'], safe='')}"
    release = f'<form method="post" action="{where}/release"><button>release</button></form>' if mine else ""
    left = time_left(lease, now)
    return (
        f"<td>{_to_place(lease['place'])}</td><td>{escape(lease['user'])}</td>"
        f'<td class="wide"><a href="{where}">{escape(lease["want"])}</a></td>'
        f'<td class="num" data-name="for">{age(now - lease["since"])}</td><td class="num" data-name="left">{left}</td>'
        f'<td class="num" data-name="sessions">{lease["sessions"]}</td><td class="go">{release}</td>'
    )


def _waiting(lease: Mapping[str, Any], now: float) -> str:
    return (
        f'<td class="num" data-name="in line:">{lease["position"]}</td><td>{escape(lease["user"])}</td>'
        f"<td>{escape(lease['want'])}</td><td>{escape(rank_words(lease))}</td>"
        f'<td class="num" data-name="since">{age(now - lease["created"])}</td>'
        f'<td class="wide dim">{escape(lease["why"])}</td>'
    )


def rank_words(request: Mapping[str, Any]) -> str:
    """Return the class of a request, and its priority where it has one."""
    priority = request["priority"]
    return f"{request['class']} {priority:+g}" if priority else str(request["class"])


def time_left(lease: Mapping[str, Any], now: float) -> str:
    """Return the time until a lease ends, which the page counts down."""
    if not lease["ends_at"]:
        return '<span class="dim">no limit</span>'
    left = max(0, round(lease["ends_at"] - now))
    hours, minutes = left // 3600, left // 60 % 60
    text = f"{hours}:{minutes:02}:{left % 60:02}" if hours else f"{minutes}:{left % 60:02}"
    return f'<span class="left" data-left="{left}">{text}</span>'


def lease_page(lease: Mapping[str, Any], may_release: bool, may_kick: bool) -> str:
    """Return all that is known of a lease, and what the viewer may do about it."""
    now, ended = lease["now"], lease["state"] == "ended"
    facts = {
        "state": escape(lease["state"]), "user": escape(lease["user"]), "asked for": escape(lease["want"]),
        "place": _to_place(lease["place"]) if lease["place"] else "", "since": clock(lease["since"]),
        "time left": "" if ended or lease["state"] == "queued" else time_left(lease, now),
        "sessions": str(lease["sessions"]), "class": escape(lease["class"]), "because": escape(lease.get("why", "")),
        "ended": escape(" ".join(filter(None, (lease.get("reason"), lease.get("detail"))))),
    }  # fmt: skip
    where = f"/lease/{quote(lease['lease'], safe='')}"
    forms = ""
    if may_release and not ended:
        forms += f'<form method="post" action="{where}/release"><button>release</button></form>'
    elif may_kick and not ended:
        forms += (
            f'<form method="post" action="{where}/kick"><input name="why" required maxlength="500" aria-label="reason" '
            'placeholder="reason, which the user reads"><button>take the place back</button></form>'
        )
    return (
        f"<h2>Lease {escape(lease['lease'])}</h2>"
        + _facts(facts)
        + (f'<div class="card note">{forms}</div>' if forms else "")
    )


def place_page(
    place: Mapping[str, Any], now: float, shown: Shown, farm: str, options: str, may: Mapping[str, bool]
) -> str:
    """Return all that is known of a place, but what happened to it.

    Parameters:
        farm: its address, as the viewer has it.
        options: of the command line, which it needs.
        may: whether the viewer may do each thing to the place, and release its lease or kick who has it.
    """
    id, lease = place["place"], place["lease"]
    facts = {
        "keys": escape(", ".join(place["keys"])),
        "state": f"{_state(place, now)} since {clock(place['since'])} ({escape(place['cause'])})"
        + ", drained" * bool(place["drain"]),
        "health": f"since {clock(place['health_since'])}" if place["health_since"] else "",
        "why": escape(place["health_reason"]),
        "user": escape(place["user"]),
        "lease": f'<a href="/lease/{quote(lease, safe="")}">{escape(lease)}</a>' if lease else "",
        **day_facts(shown, id),
        **board_facts(place["tags"]),
        "address": escape(place["address"]),
        "served by": escape(place["peer"]),
        "fence": str(place["fence"]),
        "last passed check": clock(place["checked"]) if place["checked"] else "",
    }
    facts["health"] = f"{escape(place['health'])} {facts['health']}"
    for name, value in place["tags"].items():
        if name not in _FACTS:
            facts[f"tag {name}"] = escape(_shown(name, value))
    picture = f'<div class="card day">{AXIS}{shown.picture(id, whole=True)}{shown.legend()}</div>'
    return f"<h2>{escape(id)}</h2>{picture}{_commands(place, farm, options)}{_actions(place, may)}" + _facts(facts)


def board_facts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return what a board has said of itself, as HTML; what it has not said is left out."""
    said = {name: _shown(name, tags[name]) for name in _FACTS if name in tags}
    cores = f"{said['cores']} core{'s' * (tags['cores'] != 1)}" if "cores" in said else ""
    rows = {
        "processor": (said.get("arch"), cores), "memory": (said.get("ram"),),
        "system": (" ".join(filter(None, (said.get("os"), said.get("kernel")))), said.get("libc")),
        "machine": (said.get("host"),), "version": (f"portcall {said['portcall']}" if "portcall" in said else "",),
    }  # fmt: skip
    return {name: escape(", ".join(filter(None, words))) for name, words in rows.items()}


def _commands(place: Mapping[str, Any], farm: str, options: str) -> str:
    """Return the commands that use a place, to copy."""
    id = place["place"]
    if '"' in id or place["peer"] != "portcall":  # no request can name it
        return ""
    want = shlex.quote(f"place={id}" if _WORD.fullmatch(id) else f'place="{id}"')
    where = f"--farm {shlex.quote(farm)}{options}"
    lines = (f"portcall farm reserve {want} {where} --shell",
             f"portcall run kernels.so FUNCTION --key {want} {where}")  # fmt: skip
    said = "".join(f'<p><code>{escape(line)}</code><button type="button" data-copy>copy</button></p>' for line in lines)
    return f'<div class="card commands">{said}</div>'


def _actions(place: Mapping[str, Any], may: Mapping[str, bool]) -> str:
    """Return what the viewer may do with a place."""
    where, lease = f"/place/{quote(place['place'], safe='')}", f"/lease/{quote(place['lease'], safe='')}"
    ill = place["health"] not in ("good", "unknown")
    plain = [
        (f"{lease}/release", "release", bool(place["lease"]) and may["release"]),
        (f"{where}/undrain", "hand out again", place["drain"] and may["undrain"]),
        (f"{where}/drain", "drain", not place["drain"] and may["drain"]),
        (f"{where}/good", "it is well again", ill and may["good"]),
    ]
    forms = "".join(
        f'<form method="post" action="{to}"><button>{word}</button></form>' for to, word, wanted in plain if wanted
    )
    kick = place["lease"] and not may["release"] and may["kick"]
    with_why = [(f"{lease}/kick", "take it back")] * bool(kick)
    with_why += [(f"{where}/{do}", word) for do, word in (("quarantine", "quarantine"), ("maintain", "maintenance"))
                 if may[do]]  # fmt: skip
    if with_why:
        buttons = "".join(f'<button formaction="{to}">{word}</button>' for to, word in with_why)
        forms += (
            f'<form method="post" action="{with_why[0][0]}"><input name="why" required maxlength="500" '
            f'aria-label="reason" placeholder="reason, which others read">{buttons}</form>'
        )
    return f'<div class="card note actions">{forms}</div>' if forms else ""


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f'<td class="dim">{escape(name)}</td><td>{value}</td>' for name, value in facts.items() if value)
    return table((), rows, "", "facts")


def history(events: Sequence[Mapping[str, Any]], older: int = 0, past: bool = False) -> str:
    """Return what happened, the latest first.

    Parameters:
        older: the number of the first event, if there are others before it.
        past: there are later ones.
    """
    links = '<a href="?">newest</a>' * past + f'<a href="?before={older}">older</a>' * bool(older)
    rows = (
        f'<td><time class="num">{clock(e["time"])}</time></td><td>{escape(e["what"])}</td>'
        f"<td>{_to_place(e['place']) if e['place'] else ''}</td><td>{escape(e['user'])}</td>"
        f'<td class="wide dim">{escape(e["detail"])}</td>'
        for e in reversed(events)
    )
    return (
        "<h2>History</h2>"
        + table(("time", "what", "place", "user", "why"), rows, "nothing more" if past else "nothing has happened yet")
        + f'<p class="pages">{links}</p>'
    )


def tag_words(tags: Mapping[str, Any]) -> list[str]:
    """Return the tags that tell places apart, those that people have made first."""
    own = [name if value is True else f"{name}={value}" for name, value in tags.items()
           if name not in (*_HIDDEN, "cores", "ram", "arch", "os")]  # fmt: skip
    units = {"cores": " cores"}
    return own + [
        _shown(name, tags[name]) + units.get(name, "") for name in ("arch", "os", "cores", "ram") if name in tags
    ]


def _shown(name: str, value: Any) -> str:
    if name == "ram" and isinstance(value, int) and not isinstance(value, bool):
        return format_size(value)
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _to_place(id: str) -> str:
    return f'<a href="/place/{quote(id, safe="")}">{escape(id)}</a>'


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


def age(seconds: float) -> str:
    """Return a time in the largest unit that fits."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
