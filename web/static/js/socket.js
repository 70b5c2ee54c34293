// The WebSocket to the gateway: one at a time, opened again after each loss, with growing and random pauses.

const FIRST_PAUSE = 500; // ms
const LONGEST_PAUSE = 15_000;
const STEADY = 5_000; // a connection that held this long makes the next pause short again
const SIGNED_OUT = 4401; // the gateway's close code for a sign-in that ended
const OPENING = 15_000; // how long the handshake may take

/** Gives the pause in ms before try number n (from 0): between half and all of FIRST_PAUSE × 2ⁿ, at most LONGEST_PAUSE. */
export function pauseBefore(n, random) {
  const full = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.min(n, 16));
  return Math.round(full / 2 + (full / 2) * random);
}

/**
 * Keeps a connection. Everything it uses is given, so that tests need neither a network nor a clock:
 *   address()      the URL to connect to, asked before each try
 *   open(url)      makes a WebSocket
 *   timers         {set(f, ms) → id, clear(id), now(), random()}
 *   onState(s, t)  's' is connecting, online or offline; t is when the next try is due (ms since 1970), or 0
 *   onFrame(frame) a parsed frame
 *   onOpen()       the connection stands: send what is unsent
 *   check()        called after a try that never opened, or a close that says so: resolves to false when nobody is signed in
 */
export class Socket {
  #deps;
  #ws = null;
  #tries = 0;
  #retry = null;
  #steady = null;
  #opening = null;
  #wanted = false;

  constructor(deps) {
    this.#deps = deps;
  }

  get online() {
    return this.#ws?.readyState === 1;
  }

  /** Connects and stays connected until stop. Calling it again does nothing. */
  start() {
    if (this.#wanted) return;
    this.#wanted = true;
    this.#tries = 0;
    this.#connect();
  }

  /** Closes, and stays closed. */
  stop() {
    this.#wanted = false;
    this.#drop();
  }

  /** Connects at once if no connection stands, without waiting for the pause to end. */
  hurry() {
    if (!this.#wanted || this.online || this.#ws) return;
    this.#connect();
  }

  /** Gives up the present connection, which may be dead without saying so, and makes a new one. */
  restart() {
    if (!this.#wanted) return;
    this.#drop();
    this.#connect();
  }

  /** Tells that the network is gone: says so at once instead of waiting for a timeout. */
  lost() {
    if (!this.#wanted) return;
    this.#drop();
    this.#pause();
  }

  /** Sends a frame; false when no connection stands. */
  send(text) {
    if (!this.online) return false;
    this.#ws.send(text);
    return true;
  }

  #drop() {
    const { timers } = this.#deps;
    for (const id of [this.#retry, this.#steady, this.#opening]) if (id !== null) timers.clear(id);
    this.#retry = this.#steady = this.#opening = null;
    const ws = this.#ws;
    this.#ws = null;
    if (ws) ws.close();
  }

  #connect() {
    this.#drop();
    const { timers, onState, onFrame, onOpen, open, address, check } = this.#deps;
    onState('connecting', 0);
    let opened = false;
    const ws = open(address());
    this.#ws = ws;
    this.#opening = timers.set(() => ws === this.#ws && this.restartLater(), OPENING);
    ws.onopen = () => {
      if (ws !== this.#ws) return;
      opened = true;
      timers.clear(this.#opening);
      this.#opening = null;
      this.#steady = timers.set(() => (this.#tries = 0), STEADY);
      onState('online', 0);
      onOpen();
    };
    ws.onmessage = (event) => {
      if (ws !== this.#ws) return;
      let frame;
      try {
        frame = JSON.parse(event.data);
      } catch {
        return; // not ours; the next frame may be
      }
      onFrame(frame);
    };
    ws.onclose = async (event) => {
      if (ws !== this.#ws) return;
      this.#ws = null;
      this.#pause();
      if ((!opened || event?.code === SIGNED_OUT) && !(await check()) && !this.#ws) this.stop();
    };
  }

  /** Gives up the present try and waits for the next. */
  restartLater() {
    this.#drop();
    this.#pause();
  }

  #pause() {
    if (!this.#wanted) return;
    this.#drop();
    const { timers, onState } = this.#deps;
    const ms = pauseBefore(this.#tries++, timers.random());
    onState('offline', timers.now() + ms);
    this.#retry = timers.set(() => this.#connect(), ms);
  }
}
