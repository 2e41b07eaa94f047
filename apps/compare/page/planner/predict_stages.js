// internal/predict_stages.cpp
function stages_of(c) {
  let begin = 0;
  return c.setup.split.map(count => ({ begin, end: begin += count }));
}
function memory_per_stage(c, stages, samples, actions, is_pipeline, zero_bubble) {
  return stages.map((stage, s) => {
    const first = s === 0, last = s + 1 === stages.length;
    return peak_memory(c, { range: stage, samples, actions: actions[s], data: (first ? c.profile.input_sample_bytes * c.batch : 0) + (last ? c.profile.target_sample_bytes * c.batch : 0),
      has_loss: last, keeps_input: !first, is_stage: is_pipeline, zero_bubble });
  });
}
function update_of(c, stages) {
  const update = { longest: 0, sum: 0 }, slowdown = stages.length > 1 ? c.profile.contention.update : 1;
  for (const stage of stages) {
    update.sum += slowdown * c.update(stage);
    update.longest = Math.max(update.longest, slowdown * c.update(stage));
  }
  return update;
}
const breakdown_over = (devices, forward, backward, copies, update, step) => ({ forward_s: forward / devices, backward_s: backward / devices, exposed_comm_s: copies / devices, update_s: update / devices,
  idle_s: step - (forward + backward + copies + update) / devices });

function uncontended_cost(c, stage, n, zero_bubble) {
  const m = c.setup.micro_batches, accumulating = (m - 1) / m, first = stage.begin === 0, last = stage.end === c.count;
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
  let copies = 0;
  for (let s = 1; s < stages.length; ++s) copies += 2 * time(c.link.copy, c.input_bytes(stages[s].begin, n));
  const forward = c.forward(c.all_blocks, n) + at_(c.profile.loss.forward_s, n), backward = c.backward(c.all_blocks, n) + at_(c.profile.loss.backward_s, n), update = update_of(c, stages);
  return { breakdown: breakdown_over(c.devices, forward, backward, copies, update.sum, forward + backward + copies + update.longest), memory: memory_per_stage(c, stages, [n], stages.map(() => ONE_PASS), false, false) };
}

function predict_pipeline(c, schedule) {
  const stages = stages_of(c), m = c.setup.micro_batches, count = stages.length, n = c.batch / m, zero_bubble = schedule === 'zero-bubble', actions = schedule_actions(schedule, count, m);
  const contention = zero_bubble ? [] : [...c.profile.stages], uncontended = [], receive = stages.map(() => ({ forward: 0, backward: 0, weights: 0 }));
  let transfer = 0, copies = 0;
  for (let s = 0; s < count; ++s) {
    uncontended.push(uncontended_cost(c, stages[s], n, zero_bubble));
    if (zero_bubble && s < c.profile.zero_bubble_stages.length) {
      const measured = c.profile.zero_bubble_stages[s];
      uncontended[s].backward = measured.input_grad_s;
      uncontended[s].weights = measured.weight_grad_s + (m - 1) / m * (measured.weight_grad_accumulate_s - measured.weight_grad_s);
      contention.push(measured.contention);
    }
    const input = s > 0 ? time(c.link.copy, c.input_bytes(stages[s].begin, n)) : 0, gradient = s + 1 < count ? time(c.link.copy, c.input_bytes(stages[s].end, n)) : 0;
    if (c.on_gpus) transfer = Math.max(transfer, input, gradient);
    else {
      copies += m * (input + gradient);
      receive[s] = { forward: input, backward: gradient, weights: 0 };
    }
  }
  let cost = uncontended, concurrency = new Array(count).fill(1), simulation;
  for (let iteration = 0; iteration < 8; ++iteration) {
    const factor = s => s < contention.length ? contention[s] : { forward: 1, backward: 1, weights: 1 }, contended = (s, seconds, slowdown) => seconds * (1 + (slowdown - 1) * concurrency[s]);
    cost = uncontended.map((u, s) => ({ forward: contended(s, u.forward, factor(s).forward), backward: contended(s, u.backward, factor(s).backward), weights: contended(s, u.weights, factor(s).weights) }));
    simulation = simulate_schedule(actions, cost.map((x, s) => ({ forward: x.forward + receive[s].forward, backward: x.backward + receive[s].backward, weights: x.weights })), transfer);
    concurrency = mean_concurrency(simulation);
  }
  let forward = 0, backward = 0;
  for (const stage of cost) {
    forward += m * stage.forward;
    backward += m * (stage.backward + stage.weights);
  }
  const update = update_of(c, stages);
  return { breakdown: breakdown_over(c.devices, forward, backward, copies, update.sum, simulation.total + c.profile.dispatch_s + update.longest),
    memory: memory_per_stage(c, stages, chunk_sizes(c.setup.batch_size, m), actions, true, zero_bubble) };
}

const predict_stages = c => c.axes[0].schedule === 'sequential' ? predict_one_stage_at_a_time(c) : predict_pipeline(c, c.axes[0].schedule);
