// internal/passes.cpp. Times are {blocks_s, loss_s, layers_s, loss_layers_s, samples}, a cost {computing_s, exposed_s, communication}. A
// timeline has spans {row, beside, activity, name, begin, end, subject}; a subject is {block, bucket, bytes, axis}, with null for what is not
// known.
const no_breakdown = () => ({ forward_s: 0, backward_s: 0, exposed_comm_s: 0, update_s: 0, idle_s: 0 });
function assign_buckets(bytes, first_bytes, cap_bytes) {  // common/internal/bucket.cpp, for one dtype and device
  const closed = [];
  let open = [], size = 0;
  bytes.forEach((b, i) => {
    open.push(i);
    size += b;
    if (size >= (closed.length ? cap_bytes : first_bytes)) {
      closed.push(open);
      open = [];
      size = 0;
    }
  });
  return open.length ? [...closed, open] : closed;
}
function ddp_buckets(c, blocks, times, slowdown, of_parts = false) {
  const parameters = [], ready_of = [], buckets = { bytes: [], ready_s: [], of_gradient: [], compute_s: times.loss_s };
  for (let k = blocks.end; k-- > blocks.begin;) {
    const block = c.profile.blocks[k];
    buckets.compute_s += times.blocks_s[k - blocks.begin];
    buckets.compute_s += slowdown * block.bucket_copy_s;
    for (let i = block.parameter_bytes.length; i-- > 0;) {
      if (block.parts.includes(i) !== of_parts) continue;
      parameters.push(block.parameter_bytes[i]);
      ready_of.push(buckets.compute_s);
    }
  }
  for (const members of assign_buckets(parameters, c.setup.first_bucket_bytes, c.setup.bucket_cap_bytes)) {
    let bytes = 0, complete = 0;
    for (const i of members) {
      bytes += parameters[i];
      complete = Math.max(complete, ready_of[i]);
      buckets.of_gradient[i] = buckets.bytes.length;
    }
    buckets.bytes.push(bytes);
    buckets.ready_s.push(complete);
  }
  return buckets;
}
function zero1_buckets(c, blocks, of_parts) {
  const parameters = c.profile.blocks.slice(blocks.begin, blocks.end).flatMap(b => b.parameter_bytes.filter((_, i) => b.parts.includes(i) === of_parts));
  return { bytes: assign_buckets(parameters, c.setup.bucket_cap_bytes, c.setup.bucket_cap_bytes).map(members => members.reduce((a, i) => a + parameters[i], 0)) };
}
const no_times = blocks => ({ blocks_s: range(blocks.end - blocks.begin).map(() => 0), loss_s: 0, layers_s: range(blocks.end - blocks.begin).map(() => 0), loss_layers_s: 0 });
const gathered_buckets = (c, blocks, of_parts) => c.zero === 1 ? zero1_buckets(c, blocks, of_parts) : ddp_buckets(c, blocks, no_times(blocks), 1, of_parts);

const sum_of_times = times => sum(times.blocks_s) + times.loss_s;
const layers_sum = times => sum(times.layers_s) + times.loss_layers_s;
function scaled_to(times, to) {
  if (to === 0) return no_times({ begin: 0, end: times.blocks_s.length });
  const waits = layers_sum(times), from = sum_of_times(times) - waits, factor = from > 0 ? (to - waits) / from : 0;
  return { ...times, blocks_s: times.blocks_s.map((s, k) => (s - times.layers_s[k]) * factor + times.layers_s[k]), loss_s: (times.loss_s - times.loss_layers_s) * factor + times.loss_layers_s };
}
function times_of(name, layers, c, blocks, n, has_loss, slowdown) {
  const own = c.profile.blocks.slice(blocks.begin, blocks.end), { loss } = c.profile, layers_s = own.map(b => c.layers_s(b[layers], n)), loss_layers_s = has_loss ? c.layers_s(loss[layers], n) : 0;
  return { blocks_s: own.map((b, k) => slowdown * at_(b[name], n) + layers_s[k]), loss_s: has_loss ? slowdown * at_(loss[name], n) + loss_layers_s : 0, layers_s, loss_layers_s, samples: n };
}
const forward_times = (...all) => times_of('forward_s', 'layers_forward', ...all), backward_times = (...all) => times_of('backward_s', 'layers_backward', ...all);
function block_waits(c, b, backward, n, end) {
  const sent = b[backward ? 'layers_backward' : 'layers_forward'], all = [];
  let now = end - c.layers_s(sent, n);
  for (const s of sent) {
    const axis = c.axis_of(s), seconds = layers_seconds(s, c.axes[axis].costs, n), subject = { ...moved(c, axis, layers_whole_bytes(s, n, c.axes[axis].size)), block: b === c.profile.loss ? null : b.name };
    if (seconds > 0) all.push({ beside: false, name: 'wait for ' + b.name + ' ' + s.what, subject, begin: now, end: now + seconds });
    now += seconds;
  }
  return all;
}
function layer_waits(c, blocks, times, backward, copies) {
  const all = [];
  let now = 0;
  const add = (b, seconds, waits) => {
    now += seconds;
    if (waits !== 0) all.push(...block_waits(c, b, backward, times.samples, now));
  };
  if (backward) add(c.profile.loss, times.loss_s, times.loss_layers_s);
  for (let i = blocks.begin; i < blocks.end; ++i) {
    const k = backward ? blocks.begin + blocks.end - 1 - i : i, b = c.profile.blocks[k];
    add(b, times.blocks_s[k - blocks.begin], times.layers_s[k - blocks.begin]);
    if (backward) now += copies * b.bucket_copy_s;
  }
  if (!backward) add(c.profile.loss, times.loss_s, times.loss_layers_s);
  return all;
}

const no_subject = { block: null, bucket: null, bytes: null, axis: null };
const moved = (c, i, bytes) => ({ ...no_subject, bytes: Math.floor(bytes) || null, axis: c.axes[i].name });
const of_buckets = (c, i, bytes, what) => bytes.map((own, b) => ({ name: what + b, subject: { ...moved(c, i, own), bucket: b } }));

function backward_with_buckets(c, blocks, times, slowdown) {
  const all = [];
  let compute_s = 0;
  c.each_sum(0, 0, (i, _, divides) => {
    const { of_parts } = c.axes[i], buckets = ddp_buckets(c, blocks, times, slowdown, of_parts === true), names = of_buckets(c, i, buckets.bytes, of_parts ? 'bucket of experts ' : 'bucket ');
    names.forEach((name, b) => all.push({ ready_s: buckets.ready_s[b], reduce_s: c.reduce_s(i, buckets.bytes[b], divides), axis: i, name }));
    compute_s = buckets.compute_s;
  });
  all.sort((a, b) => a.ready_s - b.ready_s);
  const o = overlap(all.map(b => b.ready_s), all.map(b => b.reduce_s), compute_s, c.interference, all.map(b => b.axis));
  return { computing_s: sum(o.computing_s), exposed_s: o.exposed_s, communication: [...communication_of(o, [], all.map(b => b.name)), ...layer_waits(c, blocks, times, true, slowdown)] };
}
function cost_of_step(step, c) {
  const times = simulate_queues(step.phases, step.collectives, c.interference);
  return { computing_s: sum(times.computing_s), exposed_s: times.exposed_s, communication: step.communication(times) };
}
const forward_with_units = (c, blocks, times) => cost_of_step(new ShardedStep(c, blocks, times, null, true, true), c);
const backward_with_units = (c, blocks, times, gathers, divides) => cost_of_step(new ShardedStep(c, blocks, null, times, gathers, divides), c);

function update_cost(c, blocks, slowdown) {
  const share = c.optimizer_share(blocks), seconds = slowdown * c.update(blocks) * share;
  if (c.zero === 0) return { computing_s: seconds, exposed_s: c.axes.map(() => 0), communication: [] };
  const own_bytes = share * c.parameter_bytes(blocks), updates = [], gathers = [], names = [];
  for (const { axis, of_parts } of c.dividing) {
    const buckets = gathered_buckets(c, blocks, of_parts).bytes;
    for (const bytes of buckets) {
      updates.push({ seconds: seconds * bytes / c.axes[axis].size / own_bytes, needs: -1 });
      gathers.push({ seconds: c.gather_s(axis, bytes), after: gathers.length, at_begin: false, queue: axis, follows: -1 });
    }
    names.push(...of_buckets(c, axis, buckets, of_parts ? 'all_gather of bucket of experts ' : 'all_gather of bucket '));
  }
  const step = simulate_queues(updates, gathers, c.interference);
  return { computing_s: sum(step.computing_s), exposed_s: step.exposed_s, communication: communication_of(step, updates, names) };
}
function with_update(c, blocks, peak, held = null) {
  if (c.zero === 0) return peak;
  const gathered = [0, 0];
  for (const { axis, of_parts } of c.dividing) {
    const { size } = c.axes[axis];
    if (size > 1) gathered.push(...gathered_buckets(c, blocks, of_parts).bytes.map(bytes => bytes * (1 + 1 / size)));
  }
  gathered.sort((a, b) => b - a);
  const updating = { ...peak, activations: 0, gradients: 0, workspace: gathered[0] + gathered[1] };
  if (c.zero === 2) updating.buckets = c.parameter_bytes(blocks) * c.optimizer_share(blocks);
  if (held) held.push({ action: held[held.length - 1].action + 1, part: 0, items: updating });
  return total(updating) > total(peak) ? updating : peak;
}
function sent_by_axis(c, blocks, gathers) {
  const sent = c.axes.map(() => 0);
  for (const { axis, of_parts } of c.dividing) sent[axis] += (c.zero > 0 ? 1 : gathers) * c.sent_bytes(axis, c.divided_bytes(blocks, of_parts));
  c.each_sum(c.parameter_bytes(blocks), c.part_bytes(blocks), (i, bytes, divides) => { sent[i] += (divides ? 1 : 2) * c.sent_bytes(i, bytes); });
  return sent;
}
function communication_of(times, phases, collectives) {
  const all = [], wait_for = c => ({ beside: false, name: 'wait for ' + c.name, subject: c.subject });
  let now = 0;
  times.phase_ended_s.forEach((ended, i) => {
    if (times.waiting_s[i] > 0) all.push({ ...wait_for(collectives[phases[i].needs]), begin: now, end: now + times.waiting_s[i] });
    now = ended;
  });
  if (times.tail_s > 0) all.push({ ...wait_for(collectives[collectives.length - 1]), begin: now, end: now + times.tail_s });
  collectives.forEach((c, i) => { if (times.collective_ended_s[i] > times.collective_began_s[i]) all.push({ beside: true, ...c, begin: times.collective_began_s[i], end: times.collective_ended_s[i] }); });
  return all;
}
function add_span(timeline, row, activity, name, begin, end, subject = no_subject) { if (end > begin) timeline.push({ row, beside: false, activity, name, begin, end, subject }); }
function add_communication(timeline, row, begin, all) {
  for (const x of all) timeline.push({ row, beside: x.beside, activity: 'communication', name: x.name, begin: begin + x.begin, end: begin + x.end, subject: x.subject });
}
function add_pass(timeline, row, activity, name, begin, pass) {
  const end = begin + pass.computing_s + sum(pass.exposed_s);
  add_span(timeline, row, activity, name, begin, end);
  add_communication(timeline, row, begin, pass.communication);
  return end;
}
// A prediction with what the divided layers of all devices send and wait for.
function with_layers(p, c) {
  const stages_ = c.axes.find(a => a.schedule), stages = stages_ ? stages_.size : 1, size = c.devices_of_sample;
  const breakdown = { ...p.breakdown }, axes = p.axes.map(a => ({ ...a })), all_sent = [...c.profile.blocks, c.profile.loss].flatMap(b => [...b.layers_forward, ...b.layers_backward]);
  c.samples_per_device.forEach((own, r) => {
    const parts = stages_ ? chunk_sizes(own, c.setup.micro_batches).length : 1, n = own / parts;
    for (const sent of all_sent) {
      const cost = axes.find(a => a.axis === sent.axis);
      cost.bytes_sent += size * parts * layers_bytes(sent, n);
      if (r === 0) cost.exposed_s += layers_seconds(sent, c.axes[c.axis_of(sent)].costs, n) * parts / stages;
    }
    if (r > 0) return;
    const forward_s = layers_sum(forward_times(c, c.all_blocks, n, true, 1)) * parts / stages, backward_s = layers_sum(backward_times(c, c.all_blocks, n, true, 1)) * parts / stages;
    breakdown.forward_s -= forward_s;
    breakdown.backward_s -= backward_s;
    breakdown.exposed_comm_s += forward_s + backward_s;
  });
  return { ...p, breakdown, axes, memory: p.memory.flatMap(m => range(size).map(() => m)), memory_over_time: { ...p.memory_over_time, device: p.memory_over_time.device * size } };
}
function axes_of(c, exposed_s, bytes_sent) {
  const all = [];
  for (let i = c.axes.length; i-- > 0;) {
    const a = c.axes[i], same = all.find(x => x.axis === a.name);
    if (same) {
      same.bytes_sent += bytes_sent[i];
      same.exposed_s += exposed_s[i];
    } else if (a.sum !== 'none' || !a.copies || a.layers) all.push({ axis: a.name, size: a.size, bytes_sent: bytes_sent[i], exposed_s: exposed_s[i] });
  }
  return all;
}
