/** The section that shows how well the model does on samples held out of training here. */

import { chart } from "./chart.js";
import { byId, say } from "./dom.js";
import { percent, plural } from "./format.js";

const MOST = 200; // rounds in the chart
const OTHER_HEAD = " This is the model in training; the one in use may have another last layer.";

export class Learning {
  constructor() {
    this._points = [];
  }

  /**
   * @param {{round: number, right: number, count: number, otherHead: boolean}} figures
   * @param {number} labels the number of labels
   */
  evaluated({ round, right, count, otherHead }, labels) {
    byId("learning").hidden = false;
    this._points = [...this._points.filter((point) => point.round < round), { round, share: right / count }].slice(-MOST);
    const first = this._points[0];
    const since = this._points.length > 1 ? ` At first it was ${percent(first.share)}.` : "";
    say(byId("judged"), `${percent(right / count)} right: ${right} of ${plural(count, "sample")} that it was not trained on.${since}${otherHead ? OTHER_HEAD : ""}`);
    byId("chart").replaceChildren(chart(this._points, 1 / labels));
  }
}
