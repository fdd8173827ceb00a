// A form is sent once, however often its button is pressed. Otherwise the second request would find that the first one has
// changed the row, and the page would show this conflict instead of what the first one has led to. Without this script that
// page says so.
addEventListener("submit", (event) => {
  const buttons = event.target.querySelectorAll("button");
  // Only after the form was sent, because a button that is disabled would not send it.
  setTimeout(() => buttons.forEach((button) => (button.disabled = true)));
});
// A browser may show the page again as it was left, for example after "back".
addEventListener("pageshow", () => document.querySelectorAll("button").forEach((button) => (button.disabled = false)));
