// predict.cpp
// A plan is {splits_model, one_process, axes}, from the outermost axis to the innermost; an axis is {name, size, sum, zero, schedule,
// keeps_whole, layers, options, samples, copies, parts}.
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
  while (i < all.length && all[i].layers && !plan.one_process) ++i;
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
  const total = setup.devices, between = at => axes.slice(0, at).reduce((product, a) => product * a.size, 1);
  const leaves_host = at => per_host > 0 && per_host < total && axes[at].size > 1 && per_host % (between(at) * axes[at].size) !== 0;
  axes.forEach((axis, at) => {
    const crosses = axis.of ? axis.of.some(leaves_host) : leaves_host(at), base = plan.one_process ? link.local : crosses && !is_free(link.cross.message) ? link.cross : link.ranks;
    let own = 1, inside = axis.of ? per_host : between(at);
    for (const i of axis.of || [])
      if (!leaves_host(i)) own *= axes[i].size;
      else inside = Math.min(inside, between(i));
    if (axis.of) inside = Math.max(1, Math.floor(inside / own));
    const sharing = crosses ? Math.max(1, Math.min(inside, per_host) / links) : 1, shared = cost => ({ latency_s: cost.latency_s, s_per_byte: cost.s_per_byte * sharing });
    axis.costs = { ...base, message: shared(base.message), gather_message: shared(base.gather_message), scatter_message: shared(base.scatter_message), peer_message: shared(base.peer_message) };
  });
}
function with_sums(axes) {
  const all = range(axes.length).filter(i => axes[i].copies && axes[i].size > 1);
  if (!all.length || (all.length === 1 && axes[all[0]].sum !== 'none')) return axes;
  const zero = Math.max(...axes.map(a => a.zero)), none = { schedule: '', keeps_whole: false, layers: false, options: '', samples: false, copies: false, parts: false };
  const own = axes.map((a, i) => ({ ...a, sum: all.includes(i) ? 'none' : a.sum, zero: 0 })), of_parts = all.filter(i => !axes[i].parts);
  const join = (of, is_parts) => ({ ...none, sum: 'buckets', zero, of, of_parts: is_parts, size: of.reduce((product, i) => product * axes[i].size, 1), name: of.map(i => axes[i].name).reverse().join('_') });
  return [...own, join(all, false), ...(of_parts.length < all.length && of_parts.length ? [join(of_parts, true)] : [])];
}
// Null if the profile was not measured for so many devices that divide the layers.
function profile_on(axes, profile) {
  const layers = axes.filter(a => a.layers && a.size > 1).reverse().map(a => a.name + '=' + a.size + (a.options ? ':' + a.options : '')).join();
  if (!layers) return profile;
  const divided = profile.divided.find(d => d.axes === layers);
  return divided ? { ...profile, blocks: divided.blocks, loss: divided.loss, optimizer_state: divided.optimizer_state, input_sample_bytes: divided.input_sample_bytes, target_sample_bytes: divided.target_sample_bytes } : null;
}

// A prediction, or null for a plan without a predictor.
function predict(plan, profile, link, setup) {
  const predictor = predictor_of(plan);
  if (!predictor) return null;
  const own = axes_on(plan, setup.devices), divided = profile_on(own, profile), axes = with_sums(own);
  if (!divided) return null;
  set_costs(axes, plan, link, setup);
  const stages = plan.splits_model ? axes.find(a => a.schedule).size : 0;
  if (stages !== (setup.split || []).length && stages > 0) setup = { ...setup, split: balanced_split_of(profile, setup, stages) };
  const c = new CostModel(divided, link, setup, axes, plan.one_process);
  if (c.zero > 0 && c.dividing.length === 1 && axes.some(a => a.parts && a.size > 1)) return null;
  const p = with_layers(predictor(c), c), s = p.breakdown;
  return { devices: p.memory.length, bubble_s: 0, ...p, step_s: s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s };
}
function simulate_devices(plan, profile, link, setup, devices) {
  if (!predictor_of(plan)) return null;
  const batch = plan.axes.findIndex(divides_batch), widest = batch < 0 ? 0 : batch;
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
