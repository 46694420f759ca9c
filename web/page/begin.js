/** Starts the page, or shows what this browser lacks. In the JavaScript of 2009, so that old browsers can run it. */
(function () {
  "use strict";

  var NEEDED = "Chrome 103, Firefox 114, Safari 16.4, or newer";
  /** A WASM module of one function that returns a vector (v128). */
  var SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];

  function inflates() {
    try {
      return Boolean(new DecompressionStream("deflate-raw"));
    } catch (error) {
      return false;
    }
  }

  /** The features that this browser lacks. Only HTTPS gives the last two; main.js tells if the page has no HTTPS. */
  function lacks() {
    var secure = window.isSecureContext === true;
    var features = {
      "modules": "noModule" in document.createElement("script"),
      "WebAssembly with SIMD": Boolean(window.WebAssembly) && WebAssembly.validate(new Uint8Array(SIMD)),
      "BigInt": typeof BigInt === "function",
      "IndexedDB": Boolean(window.indexedDB),
      "Object.hasOwn": typeof Object.hasOwn === "function",
      "DecompressionStream": inflates(),
      "Web Locks": !secure || Boolean(navigator.locks),
      "Web Crypto": !secure || Boolean(window.crypto && crypto.subtle)
    };
    return Object.keys(features).filter(function (name) { return !features[name]; });
  }

  var missing = lacks();
  if (missing.length) {
    var trouble = document.getElementById("trouble");
    trouble.textContent = "This browser is too old for this page: it has no " + missing.join(", ") + ". Needed: " + NEEDED + ".";
    trouble.hidden = false;
    return;
  }
  var script = document.createElement("script");
  script.type = "module";
  script.src = "main.js";
  document.head.appendChild(script);
})();
