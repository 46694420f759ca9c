/** A program that connects to the broker of its argument, sends its farewell, and ends at once. */
import { utf8 } from "../device/bytes.js";
import { Link } from "../device/link.js";
import { parseUrl } from "../device/url.js";
import { inNode } from "../node/transport.js";

const will = { topic: "s", payload: utf8("lost") };
const link = new Link(parseUrl(process.argv[2]), "leaving", () => {}, { will }, inNode());
await link.connect();
await link.close({ topic: "s", payload: utf8("left"), retain: false });
process.exit(0);
