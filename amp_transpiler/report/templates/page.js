"use strict";
// Tables that sort and filter, and a graph that zooms, moves and is searched. Without this script all is there, in the
// order of the program and at its own size.
const collator = new Intl.Collator("en", { numeric: true });

function keyOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.k === undefined ? cell.textContent : Number(cell.dataset.k);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
}

// Cells without a number stay at the end, whichever way the others go.
function sorted(rows, column, direction, numeric) {
  const keyed = rows.map((row, place) => ({ row, place, key: keyOf(row, column) }));
  const absent = (one) => numeric && typeof one.key !== "number";
  keyed.sort((a, b) => absent(a) - absent(b) || direction * compare(a.key, b.key) || a.place - b.place);
  return keyed.map((one) => one.row);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const original = [...body.rows];
  heads.forEach((head, column) => {
    if (head.tagName !== "TH") return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const numeric = head.classList.contains("n");
    const [first, second] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const now = was === null ? first : was === first ? second : null;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (now !== null) head.setAttribute("aria-sort", now);
      const rows = now === null ? original : sorted(original, column, now === "ascending" ? 1 : -1, numeric);
      body.append(...rows);
    });
  });
}

function makeFilter(form) {
  const rows = [...form.parentElement.querySelector("tbody").rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const [find, precision, count] = [form.querySelector("input"), form.querySelector("select"), form.querySelector("output")];
  const apply = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      const fits = (!precision.value || row.cells[0].textContent === precision.value) &&
        words.every((word) => texts[place].includes(word));
      row.hidden = !fits;
      shown += fits;
    });
    count.value = `${shown} of ${rows.length}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.show = () => { form.reset(); apply(); };
  form.hidden = false;
  apply();
}

// A link leads into folded parts, and to rows that the filter hides.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target === null) return;
  if (target.hidden) target.closest("details").querySelector(".filter").show();
  for (let part = target.closest("details"); part !== null; part = part.parentElement.closest("details")) part.open = true;
  target.scrollIntoView({ block: "nearest" });
}

// Pictures keep their size in pixels, so a larger one scrolls in its frame.
function makePicture(section) {
  const tools = section.querySelector(".tools");
  const [find, count] = [tools.querySelector("input"), tools.querySelector("output")];
  const frames = [...section.querySelectorAll(".level .wide")];
  const boxes = [...section.querySelectorAll(".box")];
  const texts = boxes.map((box) => box.textContent.toLowerCase());
  let scale = 1;
  const zoom = (factor) => {
    scale = factor === 0 ? 1 : Math.min(8, Math.max(0.1, scale * factor));
    frames.forEach((frame) => {
      const picture = frame.querySelector("svg");
      const [x, y] = [frame.scrollLeft / frame.scrollWidth, frame.scrollTop / frame.scrollHeight];
      picture.setAttribute("width", picture.viewBox.baseVal.width * scale);
      picture.setAttribute("height", picture.viewBox.baseVal.height * scale);
      frame.scrollTo(x * frame.scrollWidth, y * frame.scrollHeight);
    });
  };
  const search = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = boxes.filter((box, place) => {
      const fits = words.length > 0 && words.every((word) => texts[place].includes(word));
      box.classList.toggle("found", fits);
      return fits;
    });
    count.value = words.length ? `${hits.length} found` : "";
    if (!hits.length) return;
    for (let part = hits[0].closest("details"); part !== null; part = part.parentElement.closest("details")) part.open = true;
    hits[0].scrollIntoView({ block: "nearest", inline: "center" });
  };
  frames.forEach((frame) => {
    frame.classList.add("zoomed");
    let from = null;
    let moved = false;
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.25 : 0.8);
    }, { passive: false });
    frame.addEventListener("mousedown", (event) => {
      if (event.button !== 0) return;
      from = [event.clientX + frame.scrollLeft, event.clientY + frame.scrollTop];
      moved = false;
    });
    addEventListener("mousemove", (event) => {
      if (from === null) return;
      const way = Math.hypot(from[0] - event.clientX - frame.scrollLeft, from[1] - event.clientY - frame.scrollTop);
      moved = moved || way > 3;  // a hand that clicks is not quite still
      if (!moved) return;
      frame.classList.add("moving");
      frame.scrollTo(from[0] - event.clientX, from[1] - event.clientY);
    });
    addEventListener("mouseup", () => {
      from = null;
      frame.classList.remove("moving");
      setTimeout(() => { moved = false; });  // behind the click that follows, if one does
    });
    // A drag that begins on a box ends on it, which would follow the box's link.
    frame.addEventListener("click", (event) => { if (moved) event.preventDefault(); });
    frame.addEventListener("dragstart", (event) => event.preventDefault());
  });
  tools.addEventListener("click", (event) => {
    if (event.target.dataset.zoom !== undefined) zoom(Number(event.target.dataset.zoom));
  });
  tools.addEventListener("input", search);
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.hidden = false;
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll(".filter").forEach(makeFilter);
document.querySelectorAll(".picture").forEach(makePicture);
addEventListener("hashchange", reveal);
reveal();
