#include "linescan/train/report_style.h"

namespace linescan::report {

// Blue and orange stay apart for every kind of colour vision, and so do teal and red of the matrix
// as long as they differ in place: the diagonal is teal, everything else red.
const char* const kStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --ink: #17202b; --soft: #586472; --faint: #8b95a1;
  --rule: #dfe3e8; --grid: #e9ecf0; --cell: #f3f5f7;
  --train: #2867b2; --validation: #d4600f; --ema: #12866a;
  --right: #17788a; --wrong: #d13f55; --on: #ffffff;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #11161c; --ink: #e6ebf1; --soft: #a0acb9; --faint: #737f8c;
    --rule: #2b343e; --grid: #222a33; --cell: #1a2129;
    --train: #6caef2; --validation: #f2955c; --ema: #4fc7a5;
    --right: #3fb0c2; --wrong: #f2667b; --on: #0a1016;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 -apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1128px; margin: 0 auto; padding: 40px 32px 72px; }
h1, h2, h3, p, ol, ul, dl, dd, figure { margin: 0; padding: 0; }
i { font-style: normal; color: var(--faint); }
header { padding-bottom: 28px; }
.brand { display: flex; align-items: center; gap: 9px; font-weight: 600; }
.brand span { font-weight: 400; color: var(--soft); }
.mark { width: 22px; height: 22px; fill: none; stroke: var(--train); stroke-width: 2; stroke-linecap: round; }
.mark .cross, .mark circle { stroke: var(--validation); }
.mark circle { fill: var(--paper); }
h1 { margin-top: 22px; font-size: 34px; line-height: 1.15; font-weight: 650; letter-spacing: -.02em; overflow-wrap: anywhere; }
.subtitle { margin-top: 6px; color: var(--soft); }
section { padding-top: 44px; }
h2 { font-size: 21px; line-height: 1.3; font-weight: 650; letter-spacing: -.01em; }
h3 { font-size: 15px; line-height: 1.4; font-weight: 600; }
h3 small { margin-left: 4px; font-size: 13px; font-weight: 400; color: var(--soft); }
.lead { max-width: 92ch; text-wrap: balance; margin-top: 3px; color: var(--soft); }
.missing { margin-top: 12px; padding: 12px 16px; border: 1px dashed var(--rule); border-radius: 6px; color: var(--soft); overflow-wrap: anywhere; }

.headline { display: grid; grid-template-columns: minmax(290px, 5fr) 8fr; gap: 24px 48px; align-items: center; padding: 26px 0; border: solid var(--rule); border-width: 1px 0; }
.big { font-size: 76px; line-height: 1; font-weight: 650; letter-spacing: -.045em; }
.big span { font-size: 34px; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.main p + p { margin-top: 10px; color: var(--soft); }
.main b { font-weight: 600; color: var(--ink); }
.headline dl { display: grid; grid-template-columns: repeat(3, 1fr); gap: 22px 28px; }
dt { font-size: 13px; color: var(--soft); }
dd { font-size: 21px; line-height: 1.3; font-weight: 550; letter-spacing: -.01em; }

.pair, .trio { display: grid; gap: 30px 40px; align-items: end; margin-top: 24px; }
.pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.trio { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.chart { position: relative; break-inside: avoid; }
.chart figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 16px; min-height: 24px; margin-bottom: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 16px; list-style: none; font-size: 13px; line-height: 21px; color: var(--soft); }
.legend .value { font-weight: 600; color: var(--ink); }
.key { display: inline-block; width: 14px; height: 3px; margin-right: 6px; border-radius: 2px; vertical-align: middle; background: currentColor; }
i.train { color: var(--train); } i.validation { color: var(--validation); } i.ema { color: var(--ema); }
svg { display: block; overflow: visible; }
svg text { font-size: 12px; fill: var(--soft); }
.plot { width: calc(100% - 50px); margin: 0 4px 40px 46px; touch-action: pan-y; }
.plot.tall { height: 250px; }
.plot.low { height: 150px; }
.plot svg:not(.free) { overflow: hidden; }
.grid { stroke: var(--grid); } .axis { stroke: var(--faint); }
.tick { text-anchor: end; } .under, .count, .detail { text-anchor: middle; }
svg .name { font-size: 12px; text-anchor: end; fill: var(--faint); }
svg .start { text-anchor: start; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.faint { stroke-width: 1; stroke-opacity: .28; }
.curve.train { stroke: var(--train); } .curve.validation { stroke: var(--validation); } .curve.ema { stroke: var(--ema); }
.dot { stroke: var(--paper); stroke-width: 1; }
.dot.train { fill: var(--train); } .dot.validation { fill: var(--validation); } .dot.ema { fill: var(--ema); }
.catch { fill: none; pointer-events: all; }
.hover line { stroke: var(--faint); stroke-dasharray: 2 3; }

.split { display: grid; grid-template-columns: minmax(0, 8fr) minmax(0, 5fr); gap: 32px 48px; margin-top: 24px; }
.single { margin-top: 24px; }
.heat { width: calc(100% - var(--left)); height: calc(var(--rows) * 42px); margin: 26px 0 var(--below) var(--left); }
.dense .heat { height: calc(var(--rows) * 15px); }
.cell .back { fill: var(--cell); }
.cell rect { stroke: var(--paper); stroke-width: 1.5; }
.dense .cell rect { stroke-width: .5; }
.cell .right { fill: var(--right); } .cell .wrong { fill: var(--wrong); }
svg .count { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .detail { font-size: 10px; fill: var(--ink); fill-opacity: .75; }
svg .on { fill: var(--on); fill-opacity: 1; }
.cell { pointer-events: all; }

table { border-collapse: collapse; width: 100%; }
th { font-weight: 400; text-align: left; }
.classes { margin-top: 6px; font-size: 14px; }
.classes thead th { padding-bottom: 4px; font-size: 13px; color: var(--soft); }
.classes th:nth-child(n+3), .classes td:nth-child(n+3) { text-align: right; white-space: nowrap; }
.classes tbody th { white-space: nowrap; max-width: 160px; overflow: hidden; text-overflow: ellipsis; }
.classes td, .classes th { padding: 3px 0 3px 14px; }
.classes tr > :first-child { padding-left: 0; }
.classes .wide { width: 45%; }
.bar { width: 100%; height: 9px; }
.track { fill: var(--cell); } .bar .fill { fill: var(--right); }
.marker { stroke: var(--validation); stroke-width: 2; }
.key.fill { height: 9px; width: 9px; border-radius: 1px; color: var(--right); }
.key.marker { width: 2px; height: 13px; color: var(--validation); }
.split h3 + ol, .single h3 + ol { margin-top: 4px; }
table + h3 { margin-top: 28px; }
.confusions { list-style: none; font-size: 14px; }
.confusions li { display: grid; grid-template-columns: 1fr auto 58px; gap: 10px; padding: 3px 0; border-top: 1px solid var(--grid); }
.confusions li:first-child { border: 0; }
.confusions b { font-weight: 600; }
.confusions small { font-size: 13px; text-align: right; color: var(--soft); line-height: 21px; }

.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(142px, 1fr)); gap: 26px 20px; margin-top: 22px; }
.mistake { break-inside: avoid; }
.picture { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated; background: var(--cell); border-radius: 4px; }
.mistake figcaption { display: grid; margin-top: 8px; font-size: 14px; line-height: 1.35; overflow-wrap: anywhere; }
.mistake b { font-weight: 600; }
.mistake small { margin-top: 2px; font-size: 12px; color: var(--soft); }

.columns { columns: 3 300px; column-gap: 44px; margin-top: 18px; }
.facts { break-inside: avoid; margin-bottom: 26px; }
section > .facts { max-width: 640px; margin-top: 10px; }
.facts h3 { margin-bottom: 4px; }
.facts table { font-size: 14px; }
.facts tr { border-top: 1px solid var(--grid); }
.facts th { width: 45%; padding: 4px 16px 4px 0; color: var(--soft); vertical-align: top; overflow-wrap: anywhere; }
.facts td { padding: 4px 0; overflow-wrap: anywhere; }

@media (max-width: 900px) {
  .pair, .split, .trio { grid-template-columns: minmax(0, 1fr); }
  .headline { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 560px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 28px; }
  .big { font-size: 64px; }
  .headline dl { grid-template-columns: repeat(2, 1fr); gap: 16px 20px; }
  dd { font-size: 18px; }
  .plot.tall { height: 210px; }
  .heat { height: calc(var(--rows) * 27px); }
  svg .detail { display: none; }
  svg .count { font-size: 10px; transform: translateY(.44em); }
  .heat .tick { font-size: 11px; }
  .gallery { grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 20px 14px; }
}
@media print {
  @page { margin: 14mm; }
  :root { --paper: #ffffff; }
  main { max-width: none; padding: 0; zoom: .68; }
  section { padding-top: 26px; }
  h2, .lead { break-after: avoid; }
  .pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .trio { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .split { grid-template-columns: minmax(0, 8fr) minmax(0, 5fr); }
  .headline { grid-template-columns: minmax(290px, 5fr) 8fr; }
  .pair, .trio, section:has(.split) { break-inside: avoid; }
  .key, .picture { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
)css";

const char* const kScript = R"js(
for (const figure of document.querySelectorAll('.chart')) {
  const curves = JSON.parse(figure.querySelector('script').textContent);
  const plot = figure.querySelector('.plot'), hover = figure.querySelector('.hover');
  const surface = figure.querySelector('.catch');
  const values = [...figure.querySelectorAll('.value')], last = values.map(v => v.textContent);
  const name = figure.querySelector('.name'), unit = name.textContent;
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return x - xs[low] < xs[high] - x ? low : high;
  };
  const draw = (name, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    hover.append(element);
  };
  plot.addEventListener('pointermove', event => {
    const box = surface.getBoundingClientRect();
    const x = 100 * (event.clientX - box.left) / box.width;
    hover.replaceChildren();
    let place = null;
    curves.forEach((curve, i) => {
      if (!curve.x.length) return;
      const k = nearest(curve.x, x);
      if (place === null) {
        place = curve.x[k];
        name.textContent = unit + ' ' + curve.s[k];
        draw('line', {x1: place + '%', x2: place + '%', y2: '100%'});
      }
      values[i].textContent = curve.v[k];
      if (curve.y[k] >= 0 && curve.y[k] <= 100)
        draw('circle', {class: 'dot ' + curve.c, cx: curve.x[k] + '%', cy: curve.y[k] + '%', r: 4});
    });
  });
  plot.addEventListener('pointerleave', () => {
    hover.replaceChildren();
    name.textContent = unit;
    values.forEach((value, i) => value.textContent = last[i]);
  });
}
)js";

}  // namespace linescan::report
