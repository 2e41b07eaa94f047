// internal/predict_data_parallel.cpp
function predict_whole_models(c) {
  const all = c.all_blocks, samples = c.samples_per_device, n = samples[0], sent = c.batch - n;
  const slowdown = c.axes.length ? c.collectives.contention : { forward: 1, backward: 1, update: 1 }, b = no_breakdown(), exposed_s = c.axes.map(() => 0);
  const forward = forward_times(c, all, n, true, slowdown.forward);
  b.forward_s = sum_of_times(forward);
  const has_buckets = c.one_process ? samples.length > 1 : c.adds_in_buckets, plain = backward_times(c, all, n, true, c.one_process ? 1 : slowdown.backward);
  const add_exposed = cost => {
    cost.exposed_s.forEach((s, i) => { exposed_s[i] += s; });
    b.exposed_comm_s += sum(cost.exposed_s);
  };
  const backward = has_buckets ? backward_with_buckets(c, all, backward_times(c, all, n, true, slowdown.backward), slowdown.backward)
    : { computing_s: sum_of_times(plain), exposed_s: c.axes.map(() => 0), communication: layer_waits(c, all, plain, true, 0) };
  b.backward_s = backward.computing_s;
  add_exposed(backward);
  const update = update_cost(c, all, slowdown.update);
  b.update_s = update.computing_s;
  add_exposed(update);
  const bytes = sent_by_axis(c, all, 0).map(x => x * (has_buckets ? c.devices : 0));
  const timeline = [], dispatch_s = c.one_process ? c.profile.dispatch_s : 0;
  let now = 0;
  if (c.one_process) {
    if (sent > 0) {
      const copy_s = time(c.link.copy, c.batch_bytes(sent));
      b.exposed_comm_s += copy_s;
      exposed_s[0] += copy_s;
      bytes[0] += c.batch_bytes(sent);
      add_span(timeline, 0, 'communication', 'copy of the batch', 0, copy_s, moved(c, 0, c.batch_bytes(sent)));
      now = copy_s;
    }
    b.idle_s += 3 * c.profile.dispatch_s;
  }
  const actions = [], kept = {};
  const next = (activity, name, pass) => {
    const begin = now + dispatch_s;
    now = add_pass(timeline, 0, activity, name, begin, pass);
    actions.push([begin, now]);
  };
  next('forward', 'forward', { computing_s: b.forward_s, exposed_s: [], communication: layer_waits(c, all, forward, false, 0) });
  next('backward', 'backward', backward);
  next('optimizer', 'update', update);
  const memory = memory_of_ranks(samples, (own, r) => {
    const held = r === 0 ? [] : null;
    const peak = with_update(c, all, peak_memory(c, { range: all, samples: [own], actions: ONE_PASS, data: c.batch_bytes(c.one_process && r === 0 ? c.batch : own), has_buckets, optimizer_share: c.optimizer_share(all), divides_buckets: c.divides_buckets, held }), held);
    if (held) keep_memory_over_time(kept, r, peak, on_clock(held, actions));
    return peak;
  });
  return { breakdown: b, timeline, rows: 1, axes: axes_of(c, exposed_s, bytes), memory, memory_over_time: kept };
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
  const timeline = [], clock = {}, kept = {};
  for (let r = 0; r < samples.length; ++r) {
    let now = 0;
    const next = (activity, name, seconds, runs, bytes = 0) => {
      if (runs) add_span(timeline, r, activity, name, now, now + seconds, bytes > 0 ? moved(c, 0, bytes) : no_subject);
      now += seconds;
    };
    const dispatch_s = others > 0 ? c.profile.dispatch_s : 0;
    next('communication', 'copy of the batch', inputs, true, c.profile.input_sample_bytes * sent);
    next('communication', 'broadcast of the parameters', broadcast, true, others * parameters);
    const forward_begins = now;
    next('forward', 'forward', forward, true);
    const forward_ends = now;
    now += dispatch_s;
    next('communication', 'copy of the outputs', outputs, true, c.output_bytes(sent));
    clock.loss_begins = now;
    next('forward', 'loss', loss_forward, r === 0);
    next('backward', 'backward of the loss', loss_backward, r === 0);
    next('communication', 'copy of the gradients of outputs', outputs, true, c.output_bytes(sent));
    const backward_begins = now;
    next('backward', 'backward', backward, true);
    clock.actions = [[forward_begins, forward_ends], [backward_begins, now]];
    now += dispatch_s;
    clock.sum_begins = now;
    next('communication', 'sum of the gradients', added, true, others * parameters);
    next('optimizer', 'update', update, r === 0);
  }
  const axes = axes_of(c, [b.exposed_comm_s], [others > 0 ? c.batch_bytes(sent) + 2 * c.output_bytes(sent) + 2 * others * parameters : 0]);
  return { breakdown: b, timeline, rows: samples.length, axes, memory: memory_of_ranks(samples, (own, r) => memory_of_master(c, samples, own, r, clock, kept)), memory_over_time: kept };
}
function memory_of_master(c, samples, own, r, clock, kept) {
  const n = samples[0], all = c.batch, others = samples.length - 1, parameters = c.parameter_bytes(c.all_blocks);
  const schedule = { range: c.all_blocks, samples: [own], actions: ONE_PASS, has_loss: false, keeps_output: true, optimizer_share: r === 0 ? 1 : 0,
    data: r > 0 ? c.profile.input_sample_bytes * own : c.batch_bytes(all) + 2 * c.output_bytes(all), has_gathered: r === 0 };
  const held = [];
  let peak = peak_memory(c, { ...schedule, held });
  const samples_of_device = on_clock(held, clock.actions);
  const insert = (begin_s, items) => {
    const after = samples_of_device.findIndex(s => s.begin_s > begin_s);
    samples_of_device.splice(after < 0 ? samples_of_device.length : after, 0, { begin_s, items });
  };
  if (r === 0) {
    const in_loss = { ...no_items(), parameters, optimizer: c.profile.optimizer_state * parameters, data: c.batch_bytes(all) + c.output_bytes(all) };
    in_loss.activations = c.sum(c.all_blocks, b => at_(b.saved_bytes, n));
    for (const i of c.profile.loss.backward) in_loss.workspace = Math.max(in_loss.workspace, at_(i.peak_bytes, all));
    insert(clock.loss_begins, in_loss);
    if (total(in_loss) > total(peak)) peak = in_loss;
  }
  if (r === 0 && others > 0) {
    const adding = { ...no_items(), parameters, gradients: parameters, optimizer: c.profile.optimizer_state * parameters, data: schedule.data, workspace: c.largest_parameter_bytes() };
    insert(clock.sum_begins, adding);
    if (total(adding) > total(peak)) peak = adding;
  }
  keep_memory_over_time(kept, r, peak, samples_of_device);
  return peak;
}
