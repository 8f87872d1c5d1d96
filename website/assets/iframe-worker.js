// Browsers run no workers in pages that are opened from a disk. There the script of the search runs in a
// hidden frame; the theme asks for the name IFrameWorker, and for an importScripts that can be awaited.
if (location.protocol === "file:") {
  const load = (frame, address) => new Promise((done, failed) => {
    const script = frame.document.createElement("script");
    Object.assign(script, { src: address, onload: done, onerror: failed });
    frame.document.body.append(script);
  });
  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), {
        hidden: true, title: "search", srcdoc: "<!doctype html><title>search</title>",
      });
      this.ready = new Promise((done) => { this.frame.onload = done; }).then(() => {
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = async (...addresses) => {
          for (const one of addresses) await load(inside, one);
        };
        return load(inside, address).then(() => inside);
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  }
  window.Worker = window.IFrameWorker = FrameWorker;
}
