"use strict";

// A list of [value, count] and a place in it: the value there, and how far into its run that is.
function nth(runs, at) {
  for (const [value, count] of runs) {
    if (at < count) {
      return [value, at];
    }
    at -= count;
  }
  return [null, 0];
}

// Below each map, say which rank the mouse is on.
for (const map of document.querySelectorAll("svg[data-marks]")) {
  const { marks, left, top, cell, columns } = map.dataset;
  const says = JSON.parse(map.dataset.says);
  const ranks = JSON.parse(document.body.dataset.ranks);
  const hosts = JSON.parse(document.body.dataset.hosts);
  const tip = map.closest(".map").querySelector(".tip");
  map.addEventListener("mousemove", (event) => {
    const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    const column = Math.floor((spot.x - left) / cell);
    const at = Math.floor((spot.y - top) / cell) * columns + column;
    if (column < 0 || column >= columns || marks[at] === undefined) {
      tip.textContent = "";
      return;
    }
    const [first, after] = nth(ranks, at);
    const [host] = nth(hosts, at);
    tip.textContent = `rank ${first + after}${host ? ` on ${host}` : ""}: ${says[marks[at]]}`;
  });
  map.addEventListener("mouseleave", () => {
    tip.textContent = "";
  });
}
