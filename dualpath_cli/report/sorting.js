// A heading sorts its table by its column, and once more the other way round. Numbers go by
// `data-order`; rows without one stay last.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1, number = heading.classList.contains("number");
      const key = row => {
        const cell = row.cells[column];
        return number ? Number(cell.dataset.order ?? NaN) : cell.textContent;
      };
      const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (!number) return sign * a.localeCompare(b, "en", { numeric: true });
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
        return sign * (a - b);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}
