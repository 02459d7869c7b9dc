"""The HTML report is one file that anyone can read anywhere, and nothing in it can act."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Arm
from orchestrator.model.result import BootTrace, RunInfo, Series
from orchestrator.report.glossary import GLOSSARY
from orchestrator.report.html import render
from orchestrator.report.html.charts import styles
from orchestrator.report.html.scales import Scale, apart, log_ticks, nice_ticks, tick_labels
from tests.report.browser import CHROMIUM, dump, look
from tests.report.example_runs import ARMS, CARD, EAGLE3, INFO, points, summary, traces

REASON = "admission_limit: the server runs at most 48 requests, 70 were asked"
FULL = replace(
    INFO,
    started_utc="2026-01-02T03:04:05Z",
    workers={"eagle3": "v2: overlap is on"},
    provenance={"GPUs": "1 x NVIDIA H200", "kernel": "6.8"},
    traces=traces(),
    failures=(CARD,),
)
LONG = tuple(Arm(f"eagle3-with-a-very-long-name-{i}", {**EAGLE3, "n": i}, {}) for i in range(7))


def several(arm: str, concurrency: int) -> float:
    if arm != "eagle3":
        return 1.0
    return 0.8 if concurrency in (5, 10) else 1.2


RUNS = {
    "crossing": (summary(invalid={("eagle3", 70): (REASON,)}), FULL),
    "never": (summary(rates=lambda arm, c: 100.0 * c * (1.0 if arm == "baseline" else 0.8)), INFO),
    "always": (summary(rates=lambda arm, c: 100.0 * c * (1.0 if arm == "baseline" else 1.3)), INFO),
    "noise": (summary(rates=lambda arm, c: 100.0 * c), INFO),
    "several": (summary(5, rates=lambda arm, c: 100.0 * c * several(arm, c)), INFO),
    "one boot": (summary(1), replace(INFO, simulated=True)),
    "eight arms": (summary(2, arms=(ARMS[0], *LONG), rates=lambda arm, c: 100.0 * c + len(arm)), INFO),
    "baseline only": (summary(2, arms=ARMS[:1]), INFO),
    "nothing": (summarise([]), RunInfo()),
}


class Page(HTMLParser):
    """Tags with their attributes, as a parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_renders_as_balanced_html_without_script_or_network(name):
    page = render(*RUNS[name])
    parsed = Page(page)
    assert parsed.unbalanced == []
    assert parsed.open == []
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in parsed.tags:
        assert not {key for key in attributes if key.startswith("on") or key in ("src", "style", "srcset")}, (
            tag
        )
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page
    assert "@import" not in page
    policies = [a["content"] for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_ids_are_unique_and_every_link_leads_somewhere():
    parsed = Page(render(*RUNS["crossing"]))
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for tag, a in parsed.tags if tag == "a"} <= set(ids)


def test_the_first_heading_is_the_answer_and_the_only_one_of_its_rank():
    page = render(*RUNS["crossing"])
    assert re.findall(r"<h1>(.*?)</h1>", page) == [
        re.search(
            r"<h1>(Turn speculation off above about 10 concurrent requests \(95% interval .*?)</h1>", page
        )[1]
    ]


def test_a_simulated_run_says_so_above_everything():
    page = render(*RUNS["one boot"])
    assert page.index("SIMULATED: a stand-in engine answered") < page.index("<h1>Simulated run: no verdict")


def test_zones_are_drawn_only_for_a_tested_answer():
    assert render(*RUNS["crossing"]).count('class="zone unsure"') == 2  # wide and narrow
    assert 'class="zone' not in render(*RUNS["one boot"])
    assert 'class="zone' not in render(*RUNS["noise"])
    assert 'class="zone on"' not in render(*RUNS["never"])


def test_an_invalid_point_is_drawn_hollow_and_linked_to_its_reason():
    page = render(*RUNS["crossing"])
    assert 'class="dot invalid"' in page
    assert 'href="#reason-1"' in page
    assert f'<li id="reason-1">{REASON}</li>' in page


def test_the_same_concurrency_twice_keeps_both_results_and_both_marks():
    twice = [replace(p, concurrency=10) if p.concurrency == 30 else p for p in points(3)]
    bad = [
        replace(p, valid=False, reasons=(REASON,)) if (p.arm, p.index) == ("eagle3", 4) else p for p in twice
    ]
    page = render(summarise(bad, arms=ARMS), INFO)
    matrix = page[page.index('class="validity"') :]
    row = re.search(r"<tr><th[^>]*>eagle3</th>(.*?)</tr>", matrix)[1]
    assert re.findall(r'class="badge (\w+)"', row) == ["ok", "ok", "ok", "ok", "bad", "ok"]


def test_strips_shade_where_speculation_was_off():
    page = render(*RUNS["crossing"])
    assert "7 switches; shaded where speculation was off" in page
    shades = re.search(r'<g class="plain-steps">(.*?)</g>', page)[1]
    assert shades.count("<rect") == 4


def test_a_steady_quantity_is_drawn_steady():
    steady = Series("memory", "MiB", (0.0, 1.0, 2.0), (70000.0, 70010.0, 69990.0))
    page = render(summary(), replace(INFO, traces=(BootTrace("dynamic", 1, gpu=(steady,)),)))
    path = re.search(r'<polyline points="([^"]*)" class="strip-line"', page)[1]
    heights = [float(y) for y in re.findall(r",([\d.]+)", path)]
    assert max(heights) - min(heights) < 1


HOSTILE = "</style><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e\x00"


def hostile_page() -> str:
    arms = (Arm(HOSTILE, {}, {}), Arm(f"e{HOSTILE}", EAGLE3, {}))
    shown = summarise(
        points(2, arms=arms, rates=lambda arm, c: 100.0 * c, invalid={(HOSTILE, 70): (HOSTILE,)}),
        arms=arms,
        outputs={HOSTILE: [{(0, 0): "a"}], f"e{HOSTILE}": [{(0, 0): "b"}]},
    )
    words = dict.fromkeys(("arm", "title", "cause", "fix", "rank", "replay"), HOSTILE)
    card = replace(CARD, **words, excerpt=(HOSTILE,))
    trace = BootTrace(HOSTILE, 1, Series(HOSTILE, HOSTILE, (0.0, 1.0), (1.0, 2.0)))
    info = RunInfo(
        **dict.fromkeys(
            ("run_id", "name", "host", "folder", "started_utc", "prompts", "load", "load_from"), HOSTILE
        ),
        workers={HOSTILE: HOSTILE},
        unsupported={HOSTILE: HOSTILE},
        provenance={HOSTILE: HOSTILE},
        warnings=(HOSTILE,),
        failures=(card,),
        traces=(trace,),
    )
    return render(shown, info)


def test_nothing_that_a_node_or_user_can_write_becomes_markup_or_control_text():
    page = hostile_page()
    parsed = Page(page)
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}
    assert parsed.unbalanced == []
    assert not {"\x1b", "\x00", "\u202e"} & set(page)
    assert page.count("&lt;script&gt;") > 30  # it is all there, as text


def variables(scheme: str) -> dict[str, str]:
    css = resources.files("orchestrator.report.html").joinpath("style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme == "dark"]))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_in_light_and_dark(scheme):
    colours = variables(scheme)
    for name in ("ink", "muted", "good", "bad", "warn", "link"):
        for ground in ("bg", "surface"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for zone, label in (("on", "good"), ("off", "bad"), ("unsure", "muted")):
        assert contrast(colours[label], colours[f"zone-{zone}"]) >= 4.5, zone
    for style in range(8):
        for ground in ("bg", "zone-on", "zone-off"):
            assert contrast(colours[f"s{style}"], colours[ground]) >= 3, (style, ground)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 10000, [1, 10, 100, 1000, 10000]),
        (80, 900, [100, 200, 500]),
        (150, 11000, [200, 500, 1000, 2000, 5000, 10000]),
        (90, 180, [100, 125, 150, 175]),
    ],
)
def test_log_ticks_are_few_and_round(low, high, ticks):
    assert log_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 2.5, 5, 7.5], ["0.0", "2.5", "5.0", "7.5"]),
        ([0, 20, 40], ["0", "20", "40"]),
        ([0.1, 1, 10, 100], ["0.1", "1", "10", "100"]),
    ],
)
def test_figures_of_an_axis_have_as_many_decimals_as_each_other(ticks, labels):
    assert tick_labels(ticks) == labels


def test_words_are_explained_where_they_stand_and_in_one_folded_list():
    page = render(*RUNS["crossing"])
    assert f'<abbr title="{GLOSSARY["TPOT"]}">TPOT p50</abbr>' in page
    folded = re.search(r'<details class="glossary">(.*?)</details>', page, re.DOTALL)[1]
    assert re.findall("<dt>(.*?)</dt>", folded) == list(GLOSSARY)


def test_a_run_without_any_remark_needs_no_matrix_to_say_so():
    page = render(*RUNS["always"])
    assert "All 18 points are valid." in page
    assert 'class="validity"' not in page


def test_ticks_on_a_line_are_round_and_inside():
    assert nice_ticks(-17.3, 41) == [0, 20, 40]
    assert nice_ticks(0, 0.9) == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert nice_ticks(3, 3) == [3]


def test_labels_that_would_touch_are_left_out_but_the_last_one_stays():
    scale = Scale(1, 70, 0, 300, log=True)
    shown = apart([1, 2, 3, 4, 5, 6, 7, 8, 60, 70], scale, 24)
    assert shown[0] == 1
    assert shown[-1] == 70
    assert all(scale(b) - scale(a) >= 24 for a, b in pairwise(shown))


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium`")


@needs_browser
def test_a_browser_shows_it_at_phone_tablet_and_desk_width(tmp_path):
    names = ("crossing", "several", "never", "eight arms", "one boot")
    for (name, width), seen in look({name: render(*RUNS[name]) for name in names}, tmp_path).items():
        where = f"{name} at {width}"
        assert seen["scroll"] <= width, f"{where}: the page scrolls sideways"
        assert seen["overlaps"] == [], where
        assert seen["outside"] == [], where
        assert seen["small"] == [], where
        assert seen["dots"] > 0, where
        assert seen["readout"] == "visible", where  # focus alone shows a point's numbers,
        assert seen["axis"] == "hidden", where  # in the place of the axis' name
        if width != 768:  # a phone shows cards, a desk has room for all columns
            assert "Results" not in seen["cut"], where


@needs_browser
def test_a_browser_runs_nothing_of_a_hostile_page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(hostile_page(), encoding="utf-8")
    dom = dump(path, tmp_path)
    assert "<title>owned</title>" not in dom
    assert "<script" not in dom.replace("&lt;script", "")


def _lopsided() -> dict:
    """Surely better at 2, and below the baseline at 70, where one boot an arm is no test."""
    found = summary(
        3, rates=lambda arm, c: 100.0 * c * (1.3 if arm == "eagle3" and c < 30 else 1.0), arms=ARMS[:2]
    )
    for item in found["crossover"]:
        if item["metric"] == found["metric"]:
            last = item["changes"][-1]
            last["change"] = -0.12
            del last["low"], last["high"]
    return found


def test_always_is_not_said_where_an_untested_point_speaks_against_it():
    page = render(_lopsided(), INFO)
    assert "<h1>Speculation pays at concurrency 1, 2, 5 and 10</h1>" in page
    assert "at 30 and 70 these boots cannot tell" in page
    assert "speculation on" not in page  # no zone


def test_quantities_that_did_not_change_are_said_and_not_drawn():
    power = Series("power", "W", (0.0, 5.0, 10.0), (430.0, 430.0, 430.0))
    clock = Series("SM clock", "MHz", (0.0, 5.0, 10.0), (1980.0, 1200.0, 1980.0))
    trace = BootTrace(
        "eagle3", 1, Series("running requests", "", (0.0, 10.0), (1.0, 48.0)), gpu=(power, clock)
    )
    page = render(summary(1), replace(INFO, traces=(trace,)))
    assert "Steady: power 430 W." in page
    assert '<text x="0" y="66" class="strip-name">SM clock</text>' in page


def test_loading_takes_no_room_in_the_strips():
    running = Series("running requests", "", (100.0, 110.0), (1.0, 48.0))
    clock = Series("SM clock", "MHz", (0.0, 100.0, 110.0), (345.0, 1980.0, 1900.0))
    page = render(summary(1), replace(INFO, traces=(BootTrace("eagle3", 1, running, gpu=(clock,)),)))
    assert "345" not in page
    assert ">100 s<" in page


def test_boots_after_an_arms_first_one_fold_out():
    running = Series("running requests", "", (0.0, 10.0), (1.0, 48.0))
    boots = tuple(BootTrace("eagle3", boot, running) for boot in (1, 2))
    page = render(summary(2), replace(INFO, traces=boots))
    assert (
        page.index("eagle3, boot 1")
        < page.index("<summary>1 more boot</summary>")
        < page.index("eagle3, boot 2")
    )


@pytest.mark.parametrize("baseline", ["plain", None])
def test_no_other_arm_looks_like_the_baseline_however_many_there_are(baseline) -> None:
    arms = ["plain", *(f"arm-{i}" for i in range(9))]
    given = styles({"roles": {"baseline": baseline}, "arms": dict.fromkeys(arms)})
    assert list(given) == arms
    assert set(given.values()) == set(range(8))
    if baseline:
        assert [arm for arm in arms if given[arm] == 0] == [baseline]
