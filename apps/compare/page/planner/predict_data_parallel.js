// internal/predict_data_parallel.cpp
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
function ddp_buckets(c, n, slowdown) {
  const parameters = [], ready_of = [], buckets = { bytes: [], ready_s: [], of_gradient: [], compute_s: slowdown * at_(c.profile.loss.backward_s, n) };
  for (let k = c.count; k-- > 0;) {
    const block = c.profile.blocks[k];
    buckets.compute_s += slowdown * at_(block.backward_s, n);
    buckets.compute_s += slowdown * block.bucket_copy_s;
    for (let i = block.parameter_bytes.length; i-- > 0;) {
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
function zero1_buckets(c) {
  const parameters = c.profile.blocks.flatMap(b => b.parameter_bytes);
  return { bytes: assign_buckets(parameters, c.setup.bucket_cap_bytes, c.setup.bucket_cap_bytes).map(members => members.reduce((a, i) => a + parameters[i], 0)) };
}
function two_largest(bytes) {
  const sorted = [...bytes].sort((a, b) => a - b);
  let two = 0;
  for (let i = sorted.length; i-- > 0 && i + 2 >= sorted.length;) two += sorted[i];
  return two;
}
const no_breakdown = () => ({ forward_s: 0, backward_s: 0, exposed_comm_s: 0, update_s: 0, idle_s: 0 });

function predict_whole_models(c) {
  const samples = c.samples_per_device, n = samples[0], sent = c.batch - n, all_bytes = c.parameter_bytes(c.all_blocks), parts = c.optimizer_parts, zero = c.axes.length ? c.axes[0].zero : 0;
  const costs = c.axes.length ? c.collectives : { contention: { forward: 1, backward: 1, update: 1 } }, slowdown = costs.contention, b = no_breakdown();
  b.forward_s = slowdown.forward * (c.forward(c.all_blocks, n) + at_(c.profile.loss.forward_s, n));
  const has_buckets = c.one_process ? samples.length > 1 : c.axes.length > 0;
  let buckets = { bytes: [] };
  if (has_buckets) {
    buckets = ddp_buckets(c, n, slowdown.backward);
    const o = overlap(buckets.ready_s, buckets.bytes.map(bytes => c.reduce_s(bytes)), buckets.compute_s, costs);
    b.backward_s = o.backward_s;
    b.exposed_comm_s = o.exposed_s;
  } else b.backward_s = c.backward(c.all_blocks, n) + at_(c.profile.loss.backward_s, n);
  b.update_s = slowdown.update * c.update(c.all_blocks) / parts;
  if (c.one_process) {
    if (sent > 0) b.exposed_comm_s += time(c.link.copy, c.batch_bytes(sent));
    b.idle_s += 3 * c.profile.dispatch_s;
  }
  const gathered = zero === 1 ? zero1_buckets(c) : buckets;
  if (zero > 0) {
    const updates = gathered.bytes.map(bytes => ({ seconds: b.update_s * bytes / all_bytes, needs: -1 }));
    const step = simulate_queues(updates, gathered.bytes.map((bytes, i) => ({ seconds: c.gather_s(bytes), after: i, at_begin: false })), costs);
    b.update_s = sum(step.computing_s);
    b.exposed_comm_s += step.tail_s;
  }
  return { breakdown: b, memory: memory_of_ranks(samples, (own, r) => {
    const peak = peak_memory(c, { range: c.all_blocks, samples: [own], actions: ONE_PASS, data: c.batch_bytes(c.one_process && r === 0 ? c.batch : own), has_buckets, optimizer_share: 1 / parts, divided_buckets: zero === 2 ? parts : 1 });
    if (zero === 0) return peak;
    const updating = { ...peak, activations: 0, workspace: parts > 1 ? two_largest(gathered.bytes) * (1 + 1 / parts) : 0 };
    if (zero === 2) updating.buckets = all_bytes / parts;
    return total(updating) > total(peak) ? updating : peak;
  }) };
}

function predict_master(c) {
  const samples = c.samples_per_device, n = samples[0], all = c.batch, sent = all - n, others = samples.length - 1, parameters = c.parameter_bytes(c.all_blocks);
  const slowdown = c.link.master_contention, copy = c.link.copy, b = no_breakdown();
  const copies_to_others = bytes => others > 0 ? others * copy.latency_s + copy.s_per_byte * bytes : 0;
  const inputs = copies_to_others(c.profile.input_sample_bytes * sent), outputs = copies_to_others(c.output_bytes(sent)), per_parameter = c.link.broadcast;
  const broadcast = others > 0 ? c.parameter_count() * per_parameter.latency_s + others * parameters * per_parameter.s_per_byte : 0;
  const added = others * (c.parameter_count() * c.link.add.latency_s + parameters * c.link.add.s_per_byte);
  const forward = slowdown.forward * c.forward(c.all_blocks, n), backward = slowdown.backward * c.backward(c.all_blocks, n);
  const loss_forward = at_(c.profile.loss.forward_s, all), loss_backward = at_(c.profile.loss.backward_s, all);
  const update = slowdown.update * c.update(c.all_blocks), devices = others + 1;
  b.forward_s = forward + loss_forward / devices;
  b.backward_s = backward + loss_backward / devices;
  b.update_s = update / devices;
  b.exposed_comm_s = inputs + broadcast + 2 * outputs + added;
  b.idle_s = others / devices * (loss_forward + loss_backward + update) + (others > 0 ? 2 * c.profile.dispatch_s : 0);
  return { breakdown: b, memory: memory_of_ranks(samples, (own, r) => memory_of_master(c, samples, own, r)) };
}
function memory_of_master(c, samples, own, r) {
  const n = samples[0], all = c.batch, others = samples.length - 1, parameters = c.parameter_bytes(c.all_blocks);
  const schedule = { range: c.all_blocks, samples: [own], actions: ONE_PASS, has_loss: false, keeps_output: true, optimizer_share: r === 0 ? 1 : 0,
    data: r > 0 ? c.profile.input_sample_bytes * own : c.batch_bytes(all) + 2 * c.output_bytes(all), has_gathered: r === 0 };
  let peak = peak_memory(c, schedule);
  if (r === 0) {
    const in_loss = { ...no_items(), parameters, optimizer: c.profile.optimizer_state * parameters, data: c.batch_bytes(all) + c.output_bytes(all) };
    in_loss.activations = c.sum(c.all_blocks, b => at_(b.saved_bytes, n));
    for (const i of c.profile.loss.backward) in_loss.workspace = Math.max(in_loss.workspace, at_(i.peak_bytes, all));
    if (total(in_loss) > total(peak)) peak = in_loss;
  }
  if (r === 0 && others > 0) {
    const adding = { ...no_items(), parameters, gradients: parameters, optimizer: c.profile.optimizer_state * parameters, data: schedule.data, workspace: c.largest_parameter_bytes() };
    if (total(adding) > total(peak)) peak = adding;
  }
  return peak;
}
