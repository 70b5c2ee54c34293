// As much of a document as markdownview.js needs, and no more: there is no innerHTML to reach for. Elements write
// themselves as text, so that tests can compare them.

class Text {
  constructor(data) { this.data = String(data); }
  get textContent() { return this.data; }
  appendData(more) { this.data += more; }
  remove() { this.parent?.drop(this); }
  toString() { return this.data.replaceAll('<', '&lt;'); }
}

class Element {
  constructor(tag) {
    this.tag = tag;
    this.attributes = new Map();
    this.childNodes = [];
  }
  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  set className(value) { this.setAttribute('class', value); }
  addEventListener() {}
  append(...nodes) {
    for (const n of nodes) {
      const node = typeof n === 'object' ? n : new Text(n);
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  replaceChildren(...nodes) {
    this.childNodes = [];
    this.append(...nodes);
  }
  drop(node) { this.childNodes = this.childNodes.filter((n) => n !== node); }
  remove() { this.parent?.drop(this); }
  get firstChild() { return this.childNodes[0] ?? null; }
  get textContent() { return this.childNodes.map((n) => n.textContent).join(''); }
  querySelector(tag) {
    for (const n of this.childNodes) {
      const found = n.tag === tag ? n : n.querySelector?.(tag);
      if (found) return found;
    }
    return null;
  }
  *all() {
    yield this;
    for (const n of this.childNodes) if (n instanceof Element) yield* n.all();
  }
  toString() {
    const attributes = [...this.attributes].map(([k, v]) => ` ${k}="${v}"`).join('');
    return `<${this.tag}${attributes}>${this.childNodes.join('')}</${this.tag}>`;
  }
}

globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  createTextNode: (data) => new Text(data),
};
