// sweep.cpp. A mesh is a plan with a name, as predict.js has plans.
function meshes(devices, blocks, batch_size, tensors) {
  const all = [], none = { sum: 'none', zero: 0, schedule: '', keeps_whole: false, layers: false, sequence: false };
  for (const tensor of [1, ...tensors.filter(t => t > 1 && t <= devices)])
    for (let stages = 1; stages <= Math.min(Math.floor(devices / tensor), blocks); ++stages)
      for (let shards = 1; shards <= Math.floor(devices / tensor / stages); ++shards) {
        const replicas = Math.floor(devices / tensor / stages / shards);
        if (stages * shards * replicas * tensor !== devices || replicas * shards > batch_size) continue;
        const axes = [{ ...none, name: 'pipeline', size: stages, schedule: '1f1b' }, { ...none, name: 'replicate', size: replicas, sum: 'buckets' },
          { ...none, name: 'shard', size: shards, sum: 'units', keeps_whole: stages > 1 }, { ...none, name: 'tensor', size: tensor, layers: true }].filter(a => a.size > 1);
        all.push({ name: axes.map(a => a.name + '=' + a.size).join() || 'single', one_process: false, splits_model: stages > 1, axes });
      }
  return all;
}
// Predictions {name, prediction}, the fastest first.
function sweep(profile, link, setup, devices) {
  const tensors = profile.divided.filter(d => !d.sequence && (!setup.devices_per_host || d.size <= setup.devices_per_host)).map(d => d.size);
  return meshes(devices, profile.blocks.length, setup.batch_size, tensors).map(plan => ({ name: plan.name, prediction: simulate_devices(plan, profile, link, setup, devices) }))
    .filter(x => x.prediction).sort((a, b) => a.prediction.step_s - b.prediction.step_s);
}
