// A quote over parts of a profile: a field with the price of each of its groups. What was typed for
// a group stays when another profile is chosen that has a group of that name.
"use strict";
(() => {
  const chosen = document.getElementById("parts");
  const place = document.getElementById("prices");
  const typed = new Map();
  const inputs = () => place.querySelectorAll("input");
  const show = () => {
    for (const { name, value } of inputs()) typed.set(name, value);
    const fields = document.getElementById(chosen.selectedOptions[0].dataset.fields);
    place.replaceChildren(...(fields ? [fields.content.cloneNode(true)] : []));
    for (const input of inputs()) input.value = typed.get(input.name) ?? input.value;
  };
  chosen.addEventListener("change", show);
  // A browser that goes back restores the choice after this script has run.
  window.addEventListener("pageshow", show);
  show();
})();
