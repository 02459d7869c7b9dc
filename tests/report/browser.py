"""A headless Chromium that opens a report at several widths and says what it sees."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_PROBE = """
function seen(doc) {
  const win = doc.defaultView, out = {scroll: doc.documentElement.scrollWidth, overlaps: [], outside: [], small: []};
  for (const svg of doc.querySelectorAll('svg.chart')) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll('text')].filter(t => win.getComputedStyle(t).visibility === 'visible');
    const boxes = texts.map(t => [t.textContent, t.getBoundingClientRect()]);
    for (let i = 0; i < boxes.length; i++) {
      const [words, a] = boxes[i];
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        out.outside.push(words);
      if (a.height < 9) out.small.push(words);
      for (let j = i + 1; j < boxes.length; j++) {
        const b = boxes[j][1];
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) out.overlaps.push([words, boxes[j][0]]);
      }
    }
  }
  out.cut = [...doc.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth + 1)
    .map(s => s.getAttribute('aria-label'));
  const dots = [...doc.querySelectorAll('.dot[tabindex]')].filter(d => d.getBoundingClientRect().width);
  out.dots = dots.length;
  if (dots.length) {
    dots[0].focus();
    out.axis = win.getComputedStyle(dots[0].closest('svg').querySelector('.y-name')).visibility;
    out.readout = win.getComputedStyle(dots[0].querySelector('.says')).visibility;
  }
  out.background = win.getComputedStyle(doc.body).backgroundColor;
  out.title = doc.title;
  return out;
}
window.onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(f => seen(f.contentDocument));
  document.getElementById('found').textContent = JSON.stringify(found);
};
"""


def look(
    pages: dict[str, str], folder: Path, widths: tuple[int, ...] = (360, 768, 1200)
) -> dict[tuple[str, int], dict]:
    """What each page looks like at each width, from one start of the browser: scroll width, overlapping or cut texts,
    focus, tables that scroll sideways."""
    wanted = [(name, width) for name in pages for width in widths]
    frames = "".join(
        f'<iframe width="{width}" height="4000" srcdoc="{html.escape(pages[name], quote=True)}"></iframe>'
        for name, width in wanted
    )
    path = folder / "probe.html"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8>{frames}<pre id=found></pre><script>{_PROBE}</script>"
    )
    dom = dump(path, folder)
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    return dict(zip(wanted, json.loads(html.unescape(found[1])), strict=True))


def dump(path: Path, folder: Path) -> str:
    """The document as Chromium parsed it."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=4000",
        "--window-size=1300,4000",
    ]
    command = [CHROMIUM, *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout
