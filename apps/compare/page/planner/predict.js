// predict.cpp
// A plan is {splits_model, one_process, axes}, from the outermost axis to the innermost; an axis is {size, sum, zero, schedule}.
function predictor_of(plan) {
  if (!plan) return null;
  const all = plan.axes;
  if (all.length === 0) return predict_whole_models;
  if (all.length === 1) {
    if (all[0].schedule) return predict_stages;
    if (all[0].sum === 'master') return predict_master;
    if (all[0].sum === 'buckets') return predict_whole_models;
  }
  return all[all.length - 1].sum === 'units' && all.slice(0, -1).every(a => a.sum === 'buckets' && a.zero === 0) ? predict_sharded_models : null;
}
function axes_on(plan, devices) {
  const known = plan.axes.reduce((product, a) => product * Math.max(a.size, 1), 1);
  const axes = plan.axes.map(a => ({ ...a, size: a.size > 0 ? a.size : Math.floor(devices / known) })).reverse();
  return axes.length && axes.reduce((product, a) => product * a.size, 1) !== devices ? null : axes;
}

// A prediction, or null for a plan without a predictor.
function predict(plan, profile, link, setup) {
  const predictor = predictor_of(plan);
  if (!predictor) return null;
  const p = predictor(new CostModel(profile, link, setup, axes_on(plan, setup.devices), plan.one_process)), s = p.breakdown;
  return { devices: p.memory.length, ...p, step_s: s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s };
}
function simulate_devices(plan, profile, link, setup, devices) {
  if (!predictor_of(plan)) return null;
  const wider = plan.axes.some(a => a.size < 0) ? plan : { ...plan, axes: plan.axes.map((a, i) => i === 0 ? { ...a, size: -1 } : a) };
  if (!axes_on(wider, devices)) return null;
  const simulated = { ...setup, devices }, one = { forward: 1, backward: 1, update: 1 };
  if (plan.splits_model) {
    if (devices > profile.blocks.length) return null;
    simulated.split = balanced_split_of(profile, simulated);
  }
  return predict(wider, { ...profile, contention: one, stages: [], zero_bubble_stages: [] },
    { ...link, master_contention: one, local: { ...link.local, contention: one }, ranks: { ...link.ranks, contention: one } }, simulated);
}
function link_with(measured, latency_s, bandwidth) {
  if (latency_s === null && bandwidth === null) return measured;
  const with_ = cost => ({ latency_s: latency_s === null ? cost.latency_s : latency_s, s_per_byte: bandwidth === null ? cost.s_per_byte : 1 / bandwidth });
  const none = { latency_s: 0, s_per_byte: 0 }, reset = a => ({ message: with_(a.message), gather_message: none, scatter_message: none, overlap_slowdown: 1, compute_stall: 0, contention: { forward: 1, backward: 1, update: 1 } });
  const link = { ...measured, copy: with_(measured.copy), broadcast: with_(measured.broadcast), add: with_(measured.add), local: reset(measured.local), ranks: reset(measured.ranks) };
  if (bandwidth !== null) link.add.s_per_byte += Math.max(0, measured.add.s_per_byte - measured.broadcast.s_per_byte);
  return link;
}
