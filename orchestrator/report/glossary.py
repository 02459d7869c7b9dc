"""The report's words for somebody who sees one for the first time. `docs/report.md` shows the same."""

from __future__ import annotations

GLOSSARY = {
    "speculation": "A small draft model guesses some tokens ahead and the model checks them in one step. It pays while "
    "the GPU has room for that, which it has less of the more requests run.",
    "arm": "One way to start the server: its arguments, environment and patches. Arms get the same requests.",
    "baseline": "The arm without speculation, which the others are set against.",
    "boot": "One start of the server of one arm. Each repeat is a boot: intervals are over boots, so one has none.",
    "point": "One concurrency of the sweep. A measurement is one point in one boot.",
    "concurrency": "Requests in flight at the same time.",
    "95% interval": "Where the true mean over boots lies, with 95% confidence. ±2% is half its width.",
    "noise": "Not told apart at 95% by these boots. That is not the same as equal.",
    "TTFT": "Time to first token, in ms: request sent until the first output.",
    "TPOT": "Time per output token after the first, in ms: what one user sees as speed.",
    "p50, p99": "Half, and 99 of 100, of the requests are at or below this.",
    "accept length": "Tokens that one verify step gives, the model's own one included: at 1 no draft was of use.",
    "threshold": "Number of running requests above which the server stops speculating (patch dynamic_disable).",
    "disabled tax": "What a server with a threshold loses above it, against one that never speculates.",
    "cost of being able to switch": "What it loses up to its threshold, against one that always speculates.",
    "straddle": "A load that steps to and fro across a threshold, so that the server has to switch all the time.",
    "crossing": "The concurrency at which an arm is as fast as the baseline: faster on one side, slower on the other.",
    "not valid": "Something speaks against it, such as a load generator that ran late. Shown, and never claimed.",
    "power": "How often this many boots would find a true difference of 3%.",
}
