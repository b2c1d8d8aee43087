"use strict";
// Headers sort their table: numbers as numbers, text as text, empty cells last. Sorting removes the headings of blocks.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  if (!cell) return null;
  const text = cell.textContent.trim();
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return text === "" ? null : text;
};
const compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
};
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const header = button.closest("th");
      const up = header.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.querySelectorAll("tr.block").forEach((row) => row.remove());
      const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
      const [known, empty] = [rows.filter(([v]) => v !== null), rows.filter(([v]) => v === null)];
      known.sort(([a], [b]) => (up ? compare(a, b) : compare(b, a)));
      body.append(...known.map(([, row]) => row), ...empty.map(([, row]) => row));
    });
  });
}
