// What the laboratory's page adds to the style sheet of all pages: more colours, shares, wide tables.
#pragma once

namespace linescan::lab {

inline constexpr const char* kPageStyle = R"css(
:root { --fourth: #8d4bb8; --fifth: #6b7683; --sixth: #b08a14; }
@media screen and (prefers-color-scheme: dark) {
  :root { --fourth: #c08be6; --fifth: #98a3b0; --sixth: #d9b648; }
}
i.fourth { color: var(--fourth); } i.fifth { color: var(--fifth); }
.curve.fourth { stroke: var(--fourth); } .curve.fifth { stroke: var(--fifth); }
.dot.fourth { fill: var(--fourth); } .dot.fifth { fill: var(--fifth); }
.over { margin-top: 28px; }
.over .key { margin-left: 12px; }
.note { margin-top: 6px; font-size: 14px; color: var(--soft); }
.scroll { overflow-x: auto; margin-top: 6px; }
.measured { font-size: 14px; white-space: nowrap; }
.measured th { padding: 4px 0 4px 18px; font-size: 13px; color: var(--soft); text-align: right; }
.measured td { padding: 4px 0 4px 18px; text-align: right; border-top: 1px solid var(--grid); }
.measured tr > :first-child { padding-left: 0; text-align: left; }
.ladder td:nth-child(2) { min-width: 180px; }
.ladder .wide { width: 40%; min-width: 140px; }
.share { margin-top: 20px; }
.stack { width: 100%; height: 26px; margin: 6px 0 8px; border-radius: 4px; overflow: hidden; }
.stack rect { stroke: var(--paper); stroke-width: 1; }
.share .key { height: 9px; width: 9px; border-radius: 1px; }
.part0 { fill: var(--train); color: var(--train); }
.part1 { fill: var(--wrong); color: var(--wrong); }
.part2 { fill: var(--ema); color: var(--ema); }
.part3 { fill: var(--fourth); color: var(--fourth); }
.part4 { fill: var(--sixth); color: var(--sixth); }
.part5 { fill: var(--validation); color: var(--validation); }
.part6 { fill: var(--fifth); color: var(--fifth); }
)css";

}  // namespace linescan::lab
