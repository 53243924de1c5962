// Makes a server listen on a free port of 127.0.0.1, which it prints. server-everything takes no address, and would
// listen on all addresses.

import { Server } from "node:net";

const { listen } = Server.prototype;

Server.prototype.listen = function (_port, ...rest) {
  this.once("listening", () => console.log(`listening on http://127.0.0.1:${this.address().port}`));
  return listen.call(this, 0, "127.0.0.1", ...rest);
};
// The standard input ends when the process that started this server ends.
process.stdin.resume().on("end", () => process.exit(0));
