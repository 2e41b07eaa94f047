// predict.cpp
const PREDICTORS = {
  single: { predict: predict_single },
  'dp-master': { predict: predict_master },
  'dp-replicated': { predict: c => predict_replicas(c, true) },
  ddp: { predict: c => predict_replicas(c, false) },
  zero1: { predict: c => predict_zero(c, 1) },
  zero2: { predict: c => predict_zero(c, 2) },
  fsdp: { predict: predict_fully_sharded },
  model: { predict: predict_model_parallel, splits_model: true },
  'pipeline-gpipe': { predict: c => predict_pipeline(c, 'gpipe'), splits_model: true },
  'pipeline-1f1b': { predict: c => predict_pipeline(c, '1f1b'), splits_model: true },
  'pipeline-zero-bubble': { predict: c => predict_pipeline(c, 'zero-bubble'), splits_model: true },
};
const predictor_of = mode => Object.hasOwn(PREDICTORS, mode) ? PREDICTORS[mode] : null;

// A prediction, or null for a mode without a predictor.
function predict(mode, profile, link, setup) {
  const predictor = predictor_of(mode);
  if (!predictor) return null;
  const p = predictor.predict(new CostModel(profile, link, setup)), s = p.breakdown;
  return { mode, devices: p.memory.length, ...p, step_s: s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s };
}
function simulate_devices(mode, profile, link, setup, devices) {
  const predictor = predictor_of(mode);
  if (!predictor) return null;
  const simulated = { ...setup, devices }, one = { forward: 1, backward: 1, update: 1 };
  if (predictor.splits_model) {
    if (devices > profile.blocks.length) return null;
    simulated.split = balanced_split_of(profile, simulated);
  }
  return predict(mode, { ...profile, contention: one, stages: [], zero_bubble_stages: [] },
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
