"use strict";

const table = document.getElementById("all");

// Rows that hold all words that were typed.
function show(words) {
  let count = 0;
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  const all = table.tBodies[0].rows.length;
  document.getElementById("shown").textContent = `${count.toLocaleString("en")} of ${all.toLocaleString("en")} runs`;
}

// Rows by the text of a column, numbers by their size; what is empty comes last.
function sort(head) {
  const falling = head.getAttribute("aria-sort") === "ascending";
  const at = head.cellIndex;
  const numbers = head.classList.contains("n");
  const key = (row) => {
    const text = row.cells[at].textContent;
    return numbers && text ? Number(text.replaceAll(",", "")) : text;
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => {
    if (a === "" || b === "") {
      return (a === "") - (b === "");
    }
    const order = numbers ? a - b : a.localeCompare(b, "en", { numeric: true });
    return falling ? -order : order;
  });
  for (const other of head.parentNode.cells) {
    other.removeAttribute("aria-sort");
  }
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

if (table) {
  document.getElementById("filter").addEventListener("input", (event) => {
    show(event.target.value.toLowerCase().split(/\s+/).filter(Boolean));
  });
  for (const head of table.tHead.rows[0].cells) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        sort(head);
      }
    });
  }
}
