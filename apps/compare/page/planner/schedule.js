// pipeline/schedule.cpp. An action is ['F', 'B' or 'W', micro-batch].
function schedule_actions(schedule, stages, micro_batches) {
  const splits = schedule === 'zero-bubble';
  return range(stages).map(s => {
    const mine = [], ahead = schedule === 'gpipe' ? micro_batches : Math.min(micro_batches, stages - s);
    for (let m = 0; m < ahead; ++m) mine.push(['F', m]);
    for (let m = 0; m < micro_batches; ++m) {
      mine.push(['B', m]);
      if (splits && m >= s) mine.push(['W', m - s]);
      if (m + ahead < micro_batches) mine.push(['F', m + ahead]);
    }
    for (let m = Math.max(micro_batches - s, 0); splits && m < micro_batches; ++m) mine.push(['W', m]);
    return mine;
  });
}

const ORDER = { B: 0, F: 1, W: 2 };
// `extra` is by stage and action.
function simulate_schedule(actions, costs, transfer, extra) {
  const stages = actions.length, ended = { F: range(stages).map(() => []), B: range(stages).map(() => []), W: range(stages).map(() => []) };
  const next = new Array(stages).fill(0), free = new Array(stages).fill(0), result = { devices: range(stages).map(() => []), total: 0 };
  const arrival = (from, to, kind, m) => (ended[kind][from][m] ?? Infinity) + (from === to ? 0 : transfer);
  const cost = (s, kind) => kind === 'F' ? costs[s].forward : kind === 'B' ? costs[s].backward : costs[s].weights;
  const possible_at = s => {
    const [kind, m] = actions[s][next[s]];
    let at = free[s];
    if (kind === 'F') return s > 0 ? Math.max(at, arrival(s - 1, s, 'F', m)) : at;
    if (kind === 'B') {
      if (s + 1 < stages) at = Math.max(at, arrival(s + 1, s, 'B', m));
      return Math.max(at, arrival(s, s, 'F', m));
    }
    return Math.max(at, arrival(s, s, 'B', m));
  };
  const before = (a, b) => a.begin !== b.begin ? a.begin < b.begin : a.order !== b.order ? a.order < b.order : a.m !== b.m ? a.m < b.m : a.stage < b.stage;
  for (;;) {
    let first = null;
    for (let s = 0; s < stages; ++s) {
      if (next[s] === actions[s].length) continue;
      const begin = possible_at(s);
      if (begin === Infinity) continue;
      const [kind, m] = actions[s][next[s]], timed = { stage: s, kind, m, order: ORDER[kind], begin, end: begin + cost(s, kind) + extra[s][next[s]] };
      if (!first || before(timed, first)) first = timed;
    }
    if (!first) return result;
    ended[first.kind][first.stage][first.m] = first.end;
    ++next[first.stage];
    free[first.stage] = first.end;
    result.devices[first.stage].push(first);
    result.total = Math.max(result.total, first.end);
  }
}
