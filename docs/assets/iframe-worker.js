// Browsers start no workers for pages opened from disk: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise(resolve => {
        inside.document.open();
        inside.onload = resolve;
        inside.document.write(`<script src="${url}"></script>`);
        inside.document.close();
      });
      // What the script answers comes out here.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
