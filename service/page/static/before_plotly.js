// Style elements that Plotly makes while it is loaded carry the page's nonce.
"use strict";
{
  const { nonce } = document.getElementById("plotly.js-style-global");
  const make = Document.prototype.createElement;
  document.createElement = (...what) => {
    const made = make.apply(document, what);
    if (made instanceof HTMLStyleElement) made.nonce = nonce;
    return made;
  };
}
