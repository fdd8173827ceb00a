// The only script of ours beside htmx and that of set-up links. Each control works without it: a form is then sent by its
// button, an id or a sentence is selected by one click and copied by hand, and the zone of times is chosen in a form.
"use strict";
addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent.trim();
  navigator.clipboard.writeText(text).then(() => {
    const name = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = name), 1500);
  });
});
// A form is sent once, however often its button is pressed. Otherwise the second request would find that the first one has
// changed the row, and the page would show this conflict instead of what the first one has led to.
addEventListener("submit", (event) => {
  const buttons = event.target.querySelectorAll("button");
  // Only after the form was sent, because a button that is disabled would not send it.
  setTimeout(() => buttons.forEach((button) => (button.disabled = true)));
});
// A browser may show the page again as it was left, for example after "back".
addEventListener("pageshow", () => document.querySelectorAll("button").forEach((button) => (button.disabled = false)));
// "/" goes to the box, but never while somebody types.
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  document.querySelector(".find input")?.focus();
});
// Figures are not replaced while somebody fills in a form of them, has unfolded a part, reads in them with the keyboard or selects text of them.
const keep = (event) => {
  const part = event.target;
  if (part.id !== "live") return;
  const selection = getSelection();
  const selects = !selection.isCollapsed && part.contains(selection.anchorNode);
  const fills = part.querySelector("details[open]:not([data-open])");
  if (selects || fills || part.contains(document.activeElement)) event.preventDefault();
};
addEventListener("htmx:beforeRequest", keep);
addEventListener("htmx:beforeSwap", keep);
// The zone of this browser is offered first in the form that chooses it.
const zone = document.querySelector("select[data-guess]");
if (zone) {
  const guess = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if ([...zone.options].some((option) => option.value === guess)) zone.value = guess;
}
// Figures that could not be read again say so.
addEventListener("htmx:sendError", () => document.body.classList.add("old"));
addEventListener("htmx:afterSwap", () => document.body.classList.remove("old"));
