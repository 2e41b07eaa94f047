// critical_path.cpp, for predictions: indices into the timeline, from the end of the step to its beginning. The devices of a row
// reach a collective together, so that no collective waits for another row.
function critical_path(p) {
  const slack = 1e-3 * p.step_s, order = p.timeline.map((_, i) => i).sort((a, b) => p.timeline[a].begin - p.timeline[b].begin || a - b);
  const span = i => p.timeline[i], own = range(p.rows).map(() => []), beside = range(p.rows).map(() => []);
  range(p.rows).forEach(row => {
    const mine = order.filter(i => span(i).row === row && !span(i).beside), list = own[row];
    beside[row] = order.filter(i => span(i).row === row && span(i).beside);
    const times = mine.flatMap(i => [span(i).begin, span(i).end]).sort((a, b) => a - b);
    let open = [], next = 0;
    for (let k = 1; k < times.length; ++k) {
      while (next < mine.length && span(mine[next]).begin <= times[k - 1]) open.push(mine[next++]);
      open = open.filter(i => span(i).end > times[k - 1]);
      if (!open.length || times[k] <= times[k - 1]) continue;
      const inner = open[open.length - 1], last = list[list.length - 1];
      if (last && last.span === inner && last.end === times[k - 1]) last.end = times[k];
      else list.push({ span: inner, row, begin: times[k - 1], end: times[k] });
    }
  });
  // The last segment of a row that begins before a moment, cut there.
  const until = (row, moment) => {
    let low = 0, high = own[row].length;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (own[row][middle].begin < moment) low = middle + 1;
      else high = middle;
    }
    return low ? { ...own[row][low - 1], end: Math.min(own[row][low - 1].end, moment) } : null;
  };
  const ended_before = (row, moment) => {
    const last = until(row, moment);
    return !last || last.end < moment ? last : until(row, last.begin);
  };
  const path = [], add = i => { if (!path.includes(i)) path.push(i); };
  const before = s => {
    if (span(s.span).activity === 'communication') {
      let ended = -1;
      const { axis } = span(s.span).subject, is_of_axis = i => !axis || !span(i).subject.axis || span(i).subject.axis === axis;
      for (const i of beside[s.row]) if (is_of_axis(i) && span(i).end > s.begin && span(i).end <= s.end + slack && (ended < 0 || span(i).end > span(ended).end)) ended = i;
      if (ended >= 0) {
        add(ended);
        return until(s.row, span(ended).begin);
      }
    }
    let last = until(s.row, s.begin);
    if (!last || last.end < s.begin - slack)
      for (let row = 0; row < p.rows; ++row) {
        const other = row === s.row ? null : ended_before(row, s.begin + slack);
        if (other && (!last || other.end > last.end)) last = other;
      }
    return last && { ...last, end: Math.min(last.end, s.begin) };
  };
  let at = null;
  for (const list of own) if (list.length && (!at || list[list.length - 1].end > at.end)) at = list[list.length - 1];
  while (at) {
    add(at.span);
    const { end } = at;
    at = before(at);
    if (at && at.end >= end) break;
  }
  return path;
}
