// The token of a set-up link is behind its "#", which browsers send to nobody. It goes into the form, and out of the
// address and the history. Without this script the link is pasted into the form by hand.
"use strict";
{
  const token = location.hash.slice(1);
  const field = document.querySelector("input[name=link]");
  if (token && field) {
    field.value = token;
    history.replaceState(null, "", location.pathname);
  }
  if (field && field.value) {
    document.getElementById("link").hidden = true;
  }
}
