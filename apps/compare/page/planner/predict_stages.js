// internal/predict_stages.cpp
const stages_axis = c => c.axes.findIndex(a => a.schedule);
function stages_of(c) {
  let begin = 0;
  return c.setup.split.map(count => ({ begin, end: begin += count }));
}
// `times` has the actions of the first replica of each stage. Returns the members of a prediction.
function memory_of_stages(c, stages, samples, actions, times, is_pipeline, zero_bubble) {
  const shards = c.model_parts, divided_after = range(c.count).map(() => 1), headers = is_pipeline && !c.one_process && stages.length > 1 ? 3 * 2672 : 0;  // sizeof(MessageHeader)
  const kept = {}, memory = stages.flatMap((stage, s) => samples.map((own, replica) => {
    const held = replica === 0 ? [] : null, first = s === 0, last = s + 1 === stages.length;
    let all = 0;
    for (const n of own) all += n;
    const peak = with_update(c, stage, peak_memory(c, { range: stage, samples: own, actions: actions(own.length)[s], data: (first ? c.profile.input_sample_bytes * all : 0) + (last ? c.profile.target_sample_bytes * all : 0) + headers,
      has_loss: last, keeps_input: !first, is_stage: is_pipeline, has_buckets: c.adds_in_buckets, zero_bubble, optimizer_share: c.optimizer_share(stages[s]), sharded: shards,
      keeps_whole: shards > 1 && c.axes[c.dividing_axis].keeps_whole, divided_after, divides_buckets: c.divides_buckets, held }), held);
    if (held) keep_memory_over_time(kept, s * samples.length, peak, on_clock(held, times[s]));
    return peak;
  }));
  return { memory, memory_over_time: kept };
}
const breakdown_over = (stages, forward, backward, exposed, update, step) => ({ forward_s: forward / stages, backward_s: backward / stages, exposed_comm_s: exposed / stages, update_s: update / stages,
  idle_s: step - (forward + backward + exposed + update) / stages });

function uncontended_cost(c, stage, n, m, zero_bubble) {
  const accumulating = (m - 1) / m, first = stage.begin === 0, last = stage.end === c.count;
  const cost = { forward: c.forward(stage, n), backward: 0, weights: 0 };
  if (zero_bubble && !first) {
    cost.backward = c.sum(stage, b => b.input_grad_s);
    cost.weights = c.sum(stage, b => b.weight_grad_s + accumulating * (b.weight_grad_accumulate_s - b.weight_grad_s));
  } else {
    const accumulate = c.sum(stage, b => b.accumulate_s);
    cost.backward = c.backward(stage, n) + accumulating * accumulate;
  }
  if (last) {
    cost.forward += at_(c.profile.loss.forward_s, n);
    cost.backward += at_(c.profile.loss.backward_s, n);
  }
  if (zero_bubble && first) {
    cost.weights = cost.backward;
    cost.backward = 0;
  }
  return cost;
}

function mean_concurrency(simulation) {
  const count = simulation.devices.length, busy = new Array(count).fill(0), with_others = new Array(count).fill(0), changes = [];
  simulation.devices.forEach((list, d) => { for (const t of list) changes.push([t.begin, 1, d], [t.end, -1, d]); });
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
  const is_busy = new Array(count).fill(0);
  let now = 0;
  for (const [moment, change, device] of changes) {
    let busy_devices = 0;
    for (const x of is_busy) busy_devices += x === 1 ? 1 : 0;
    for (let d = 0; d < count; ++d) {
      if (is_busy[d] === 0) continue;
      busy[d] += moment - now;
      with_others[d] += (moment - now) * (busy_devices - 1);
    }
    now = moment;
    is_busy[device] += change;
  }
  return with_others.map((x, d) => count > 1 && busy[d] > 0 ? x / busy[d] / (count - 1) : 0);
}

function predict_one_stage_at_a_time(c) {
  const stages = stages_of(c), n = c.batch;
  let copies = 0, longest = 0, sent = 0;
  for (let s = 1; s < stages.length; ++s) copies += 2 * time(c.link.copy, c.input_bytes(stages[s].begin, n));
  const forward = c.forward(c.all_blocks, n) + at_(c.profile.loss.forward_s, n), backward = c.backward(c.all_blocks, n) + at_(c.profile.loss.backward_s, n), slowdown = stages.length > 1 ? c.profile.contention.update : 1;
  for (const stage of stages) longest = Math.max(longest, slowdown * c.update(stage));
  for (let s = 1; s < stages.length; ++s) sent += 2 * c.input_bytes(stages[s].begin, n);
  const breakdown = breakdown_over(c.devices, forward, backward, copies, slowdown * c.update(c.all_blocks), forward + backward + copies + longest);
  const timeline = [], copy_s = s => time(c.link.copy, c.input_bytes(stages[s].begin, n));
  let now = 0;
  const input = s => moved(c, 0, c.input_bytes(stages[s].begin, n));
  const next = (s, activity, name, seconds, subject) => {
    add_span(timeline, s, activity, name, now, now + seconds, subject);
    now += seconds;
  };
  const times = stages.map(() => []), computes = (s, activity, name, seconds) => {
    times[s].push([now, now + seconds]);
    next(s, activity, name, seconds);
  };
  for (let s = 0; s < stages.length; ++s) {
    if (s > 0) next(s, 'communication', 'copy of the activations', copy_s(s), input(s));
    computes(s, 'forward', 'forward', c.forward(stages[s], n) + (s + 1 === stages.length ? at_(c.profile.loss.forward_s, n) : 0));
  }
  for (let s = stages.length; s-- > 0;) {
    const last = s + 1 === stages.length;
    if (!last) next(s, 'communication', 'copy of the gradients', copy_s(s + 1), input(s + 1));
    computes(s, 'backward', 'backward', c.backward(stages[s], n) + (last ? at_(c.profile.loss.backward_s, n) : 0));
  }
  stages.forEach((stage, s) => add_span(timeline, s, 'optimizer', 'update', now, now + slowdown * c.update(stage)));
  return { breakdown, timeline, rows: stages.length, axes: axes_of(c, [breakdown.exposed_comm_s], [sent]), ...memory_of_stages(c, stages, [[n]], () => stages.map(() => ONE_PASS), times, false, false) };
}

class StageTimes {
  constructor(c, actions, n, m, zero_bubble) {
    Object.assign(this, { c, actions, n, m, zero_bubble, stages: stages_of(c) });
    this.uncontended = this.stages.map(stage => uncontended_cost(c, stage, n, m, zero_bubble));
    this.contention = this.stages.map((_, s) => this.contention_of(s));
  }
  set(concurrency) {
    this.forward_s = this.backward_s = 0;
    this.exposed_s = this.c.axes.map(() => 0);
    this.costs = [];
    this.extra = [];
    this.communication = [];
    this.stages.forEach((_, s) => {
      const contended = (seconds, factor) => seconds * (1 + (factor - 1) * concurrency[s]), u = this.uncontended[s], by = this.contention[s];
      const layers = this.layers_of(s), cost = { forward: contended(u.forward, by.forward) + layers.forward, backward: contended(u.backward, by.backward) + layers.backward, weights: contended(u.weights, by.weights) + layers.weights };
      this.costs.push(cost);
      this.extra.push(this.actions[s].map(() => 0));
      this.communication.push(this.actions[s].map(() => []));
      this.forward_s += this.m * cost.forward;
      this.backward_s += this.m * (cost.backward + cost.weights);
      this.add_layer_waits(s, cost);
      this.add_collectives(s, cost);
    });
  }
  contention_of(s) {
    const c = this.c, measured = list => c.axes.length === 1 && list.length === this.stages.length;
    if (this.zero_bubble && measured(c.profile.zero_bubble_stages)) {
      const stage = c.profile.zero_bubble_stages[s];
      this.uncontended[s].backward = stage.input_grad_s;
      this.uncontended[s].weights = stage.weight_grad_s + (this.m - 1) / this.m * (stage.weight_grad_accumulate_s - stage.weight_grad_s);
      return stage.contention;
    }
    if (!this.zero_bubble && measured(c.profile.stages)) return c.profile.stages[s];
    if (c.one_process) return { forward: 1, backward: 1, weights: 1 };
    const of_ranks = c.collectives.contention;
    return { forward: of_ranks.forward, backward: of_ranks.backward, weights: of_ranks.backward };
  }
  layers_of(s) {
    const waits = times => layers_sum(times(this.c, this.stages[s], this.n, this.stages[s].end === this.c.count, 1)), forward = waits(forward_times), backward = waits(backward_times);
    return this.zero_bubble && s === 0 ? { forward, backward: 0, weights: backward } : { forward, backward, weights: 0 };
  }
  add_layer_waits(s, cost) {
    const stage = this.stages[s], has_loss = stage.end === this.c.count, all_in_weights = this.zero_bubble && s === 0;
    const waits = (times, seconds, backward) => layer_waits(this.c, stage, scaled_to(times(this.c, stage, this.n, has_loss, 1), seconds), backward, 0);
    this.actions[s].forEach(([kind], i) => {
      if (kind === 'F') this.communication[s][i] = waits(forward_times, cost.forward, false);
      else if ((kind === 'W') === all_in_weights) this.communication[s][i] = waits(backward_times, all_in_weights ? cost.weights : cost.backward, true);
    });
  }
  last_backward(s) {
    const stage = this.stages[s], times = backward_times(this.c, stage, this.n, stage.end === this.c.count, 1);
    if (!this.zero_bubble || stage.begin === 0) return times;
    return { ...no_times(stage), blocks_s: this.c.profile.blocks.slice(stage.begin, stage.end).map(b => this.m > 1 ? b.weight_grad_accumulate_s : b.weight_grad_s) };
  }
  add(pass, computing_s, sum_s, s, i) {
    this[sum_s] += pass.computing_s - computing_s;
    this.extra[s][i] += pass.computing_s - computing_s + sum(pass.exposed_s);
    this.communication[s][i] = pass.communication;
    pass.exposed_s.forEach((x, axis) => { this.exposed_s[axis] += x; });
  }
  add_collectives(s, cost) {
    const c = this.c, stage = this.stages[s], in_weights = this.zero_bubble, last_s = in_weights ? cost.weights : cost.backward, last = scaled_to(this.last_backward(s), last_s), end = this.extra[s].length - 1;
    if (c.adds_in_buckets) this.add(backward_with_buckets(c, stage, last, 1), last_s, 'backward_s', s, end);
    if (c.model_parts === 1) return;
    const keeps = c.axes[c.dividing_axis].keeps_whole, has_loss = stage.end === c.count;
    const all_backward = scaled_to(backward_times(c, stage, this.n, has_loss, 1), cost.backward);
    const forward = forward_with_units(c, stage, scaled_to(forward_times(c, stage, this.n, has_loss, 1), cost.forward));
    const backward = backward_with_units(c, stage, all_backward, true, false), dividing = backward_with_units(c, stage, last, !keeps && !in_weights, true);
    for (let i = 0; i <= end; ++i) {
      const kind = this.actions[s][i][0];
      if (kind === 'F' && (i === 0 || !keeps)) this.add(forward, cost.forward, 'forward_s', s, i);
      else if (i === end) this.add(dividing, last_s, 'backward_s', s, i);
      else if (kind === 'B' && !keeps) this.add(backward, cost.backward, 'backward_s', s, i);
    }
  }
}

const KIND_NAMES = { F: 'forward', B: 'backward', W: 'weights' };
function add_stage(timeline, row, actions, receive, input, gradient, communication) {
  actions.forEach((t, i) => {
    const forward = t.kind === 'F';
    add_span(timeline, row, forward ? 'forward' : 'backward', KIND_NAMES[t.kind] + ' ' + t.m, t.begin, t.end);
    const received = forward ? receive.forward : t.kind === 'W' ? 0 : receive.backward;
    add_span(timeline, row, 'communication', forward ? 'copy of the activations' : 'copy of the gradients', t.begin, t.begin + received, forward ? input : gradient);
    add_communication(timeline, row, t.begin, communication[i]);
  });
}

function predict_pipeline(c, schedule) {
  const axis = stages_axis(c), replicas = c.samples_per_device, samples = replicas.map(own => chunk_sizes(own, c.setup.micro_batches));
  const count = c.axes[axis].size, m = samples[0].length, n = replicas[0] / m, zero_bubble = schedule === 'zero-bubble', actions = schedule_actions(schedule, count, m);
  const times = new StageTimes(c, actions, n, m, zero_bubble), stages = times.stages, receive = stages.map(() => ({ forward: 0, backward: 0 }));
  let transfer = 0, copies = 0, sent = 0;
  const message_s = bytes => c.one_process ? time(c.link.copy, bytes) : peer_s(c.axes[axis].costs, bytes);
  stages.forEach((stage, s) => {
    const input = s > 0 ? message_s(c.input_bytes(stage.begin, n)) : 0, gradient = s + 1 < stages.length ? message_s(c.input_bytes(stage.end, n)) : 0;
    if (s > 0) sent += 2 * c.input_bytes(stage.begin, c.batch);
    if (c.on_gpus || !c.one_process) transfer = Math.max(transfer, input, gradient);
    else {
      copies += m * (input + gradient);
      receive[s] = { forward: input, backward: gradient };
    }
  });
  const beside = replicas.length * c.devices_of_sample;
  let concurrency = stages.map(() => 1), simulation, costs;
  for (let iteration = 0; iteration < 8; ++iteration) {
    times.set(concurrency);
    costs = times.costs.map((x, s) => ({ forward: x.forward + receive[s].forward, backward: x.backward + receive[s].backward, weights: x.weights }));
    simulation = simulate_schedule(actions, costs, transfer, times.extra);
    concurrency = mean_concurrency(simulation);
    if (beside > 1) concurrency = concurrency.map(v => (v * (count - 1) * beside + beside - 1) / (count * beside - 1));
  }
  const slowdown = c.devices === 1 ? 1 : c.one_process ? c.profile.contention.update : c.collectives.contention.update, bytes = c.axes.map(() => 0);
  const gathers = c.model_parts > 1 && !c.axes[c.dividing_axis].keeps_whole ? 2 * m : 1;
  const timeline = [], clock = stages.map(() => []);
  let update = 0, longest = 0, end = 0;
  stages.forEach((stage, s) => {
    const own = update_cost(c, stage, slowdown), done = simulation.devices[s];
    update += own.computing_s;
    longest = Math.max(longest, own.computing_s);
    end = Math.max(end, done[done.length - 1].end + own.computing_s + sum(own.exposed_s));
    add_stage(timeline, s, done, receive[s], moved(c, axis, c.input_bytes(stage.begin, n)), moved(c, axis, c.input_bytes(stage.end, n)), times.communication[s]);
    for (const t of done) clock[s].push([t.begin, t.end]);
    const update_begins = c.one_process ? simulation.total + c.profile.dispatch_s : done[done.length - 1].end;
    clock[s].push([update_begins, add_pass(timeline, s, 'optimizer', 'update', update_begins, own)]);
    sent_by_axis(c, stage, gathers).forEach((x, i) => {
      times.exposed_s[i] += own.exposed_s[i];
      bytes[i] += beside * x;
    });
  });
  bytes[axis] += c.devices_of_sample * sent;
  if (c.one_process) end = simulation.total + c.profile.dispatch_s + longest;
  let exposed = copies;
  for (const s of times.exposed_s) exposed += s;
  const idle = Math.max(0, end - (times.forward_s + times.backward_s + exposed + update) / count);
  const messages = Math.min(idle, Math.max(0, simulation.total - simulate_schedule(actions, costs, 0, times.extra).total));
  times.exposed_s[axis] += copies + count * messages;
  exposed += count * messages;
  const breakdown = breakdown_over(count, times.forward_s, times.backward_s, exposed, update, end);
  return { breakdown, timeline, rows: count, bubble_s: breakdown.idle_s, axes: axes_of(c, times.exposed_s.map(s => s / count), bytes), ...memory_of_stages(c, stages, samples, own => schedule_actions(schedule, count, own), clock, true, zero_bubble) };
}

function predict_stages(c) {
  const { schedule } = c.axes[stages_axis(c)];
  return schedule === 'sequential' ? predict_one_stage_at_a_time(c) : predict_pipeline(c, schedule);
}
