// predict.cpp
// A plan is {splits_model, one_process, axes}, from the outermost axis to the innermost; an axis is {name, size, sum, zero, schedule,
// keeps_whole, layers, sequence}.
function predictor_of(plan) {
  if (!plan) return null;
  const all = plan.axes;
  if (all.length === 0) return predict_whole_models;
  if (all.length === 1 && all[0].sum === 'master') return predict_master;
  let i = 0;
  const stages = all[0].schedule !== '';
  if (!stages && all.some(a => a.keeps_whole)) return null;
  if (stages && (all.length === 1 || (!plan.one_process && all[0].schedule !== 'sequential'))) ++i;
  const replicas = i < all.length && all[i].sum === 'buckets' && !all[i].schedule, zero = replicas && all[i].zero > 0;
  if (replicas) ++i;
  const shards = i < all.length && all[i].sum === 'units' && !all[i].schedule && !zero;
  if (shards) ++i;
  if (i < all.length && all[i].layers && !plan.one_process) ++i;
  if (i < all.length) return null;
  return stages ? predict_stages : shards ? predict_sharded_models : predict_whole_models;
}
function axes_on(plan, devices) {
  const known = plan.axes.reduce((product, a) => product * Math.max(a.size, 1), 1);
  const axes = plan.axes.map(a => ({ ...a, size: a.size > 0 ? a.size : Math.floor(devices / known) })).reverse();
  return axes.length && axes.reduce((product, a) => product * a.size, 1) !== devices ? null : axes;
}
function set_costs(axes, plan, link, setup) {
  const per_host = setup.devices_per_host || 0, links = setup.links_per_host || 1;
  let inside = 1;
  const total = axes.reduce((product, a) => product * a.size, 1);
  for (const axis of axes) {
    const crosses = per_host > 0 && per_host < total && axis.size > 1 && per_host % (inside * axis.size) !== 0, base = plan.one_process ? link.local : crosses && !is_free(link.cross.message) ? link.cross : link.ranks;
    const sharing = crosses ? Math.max(1, Math.min(inside, per_host) / links) : 1, shared = cost => ({ latency_s: cost.latency_s, s_per_byte: cost.s_per_byte * sharing });
    axis.costs = { ...base, message: shared(base.message), gather_message: shared(base.gather_message), scatter_message: shared(base.scatter_message), peer_message: shared(base.peer_message) };
    inside *= axis.size;
  }
}
// Null if the profile was not measured for so many devices that divide the layers.
function profile_on(axes, profile) {
  const axis = axes.find(a => a.layers && a.size > 1);
  if (!axis) return profile;
  const divided = profile.divided.find(d => d.size === axis.size && d.sequence === axis.sequence);
  return divided ? { ...profile, blocks: divided.blocks, loss: divided.loss, optimizer_state: divided.optimizer_state } : null;
}

// A prediction, or null for a plan without a predictor.
function predict(plan, profile, link, setup) {
  const predictor = predictor_of(plan);
  if (!predictor) return null;
  const axes = axes_on(plan, setup.devices), divided = profile_on(axes, profile);
  if (!divided) return null;
  set_costs(axes, plan, link, setup);
  const stages = plan.splits_model ? axes.find(a => a.schedule).size : 0;
  if (stages !== (setup.split || []).length && stages > 0) setup = { ...setup, split: balanced_split_of(profile, setup, stages) };
  const c = new CostModel(divided, link, setup, axes, plan.one_process), p = with_layers(predictor(c), c), s = p.breakdown;
  return { devices: p.memory.length, bubble_s: 0, ...p, step_s: s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s };
}
function simulate_devices(plan, profile, link, setup, devices) {
  if (!predictor_of(plan)) return null;
  const batch = plan.axes.findIndex(a => a.sum !== 'none'), widest = batch < 0 ? 0 : batch;
  const wider = plan.axes.some(a => a.size < 0) ? plan : { ...plan, axes: plan.axes.map((a, i) => i === widest ? { ...a, size: -1 } : a) };
  const axes = axes_on(wider, devices);
  if (!axes) return null;
  const simulated = { ...setup, devices }, one = { forward: 1, backward: 1, update: 1 };
  if (plan.splits_model) {
    const stages = axes.find(a => a.schedule).size;
    if (stages > profile.blocks.length) return null;
    simulated.split = balanced_split_of(profile, simulated, stages);
  }
  return predict(wider, { ...profile, contention: one, stages: [], zero_bubble_stages: [] },
    { ...link, master_contention: one, local: { ...link.local, contention: one }, ranks: { ...link.ranks, contention: one } }, simulated);
}
function link_with(measured, latency_s, bandwidth) {
  if (latency_s === null && bandwidth === null) return measured;
  const with_ = cost => ({ latency_s: latency_s === null ? cost.latency_s : latency_s, s_per_byte: bandwidth === null ? cost.s_per_byte : 1 / bandwidth });
  const none = { latency_s: 0, s_per_byte: 0 }, reset = a => ({ message: with_(a.message), gather_message: none, scatter_message: none, peer_message: none, overlap_slowdown: 1, compute_stall: 0, contention: { forward: 1, backward: 1, update: 1 } });
  const link = { ...measured, copy: with_(measured.copy), broadcast: with_(measured.broadcast), add: with_(measured.add), local: reset(measured.local), ranks: reset(measured.ranks) };
  if (bandwidth !== null) link.add.s_per_byte += Math.max(0, measured.add.s_per_byte - measured.broadcast.s_per_byte);
  return link;
}
