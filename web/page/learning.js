/** The section that shows how well the model does on what was kept out of training here. */

import { chart } from "./chart.js";
import { byId, say } from "./dom.js";
import { percent, plural } from "./format.js";

const MOST = 200; // rounds that are shown

export class Learning {
  constructor() {
    this._points = [];
  }

  /** @param {{round: number, accuracy: number, count: number}} told @param {number} labels how many there are */
  evaluated({ round, accuracy, count }, labels) {
    byId("learning").hidden = false;
    this._points = [...this._points.filter((point) => point.round < round), { round, share: accuracy }].slice(-MOST);
    const first = this._points[0];
    const since = this._points.length > 1 ? ` In round ${first.round} it was ${percent(first.share)}.` : "";
    const right = `${Math.round(accuracy * count)} of ${plural(count, "sample")}`;
    say(byId("judged"), `${percent(accuracy)} right: ${right} that it was not trained on.${since}`);
    byId("chart").replaceChildren(chart(this._points, 1 / labels));
  }
}
