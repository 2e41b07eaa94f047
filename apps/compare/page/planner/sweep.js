// sweep.cpp. A mesh is a plan with a name, as predict.js has plans. `layers` are texts such as "context=2,tensor=2".
const axis_of_mesh = (name, size) => ({ name, size, sum: 'none', zero: 0, schedule: '', keeps_whole: false, layers: ['tensor', 'context', 'expert'].includes(name), options: '',
  samples: ['replicate', 'shard', 'expert'].includes(name), copies: ['replicate', 'expert', 'context'].includes(name), parts: name === 'expert' });
const layers_of_text = text => text.split(',').map(axis => axis.split('=')).map(([name, size]) => axis_of_mesh(name, Number(size)));
const product_of = axes => axes.reduce((product, a) => product * a.size, 1);
function meshes(devices, blocks, batch_size, layers) {
  const all = [];
  for (const inner of [[], ...layers.map(layers_of_text)]) {
    const size = product_of(inner), data = product_of(inner.filter(divides_batch));
    for (let stages = 1; stages <= Math.min(Math.floor(devices / size), blocks); ++stages)
      for (let shards = 1; shards <= Math.floor(devices / size / stages); ++shards) {
        const replicas = Math.floor(devices / size / stages / shards);
        if (stages * shards * replicas * size !== devices || replicas * shards * data > batch_size) continue;
        const axes = [{ ...axis_of_mesh('pipeline', stages), schedule: '1f1b' }, { ...axis_of_mesh('replicate', replicas), sum: 'buckets' },
          { ...axis_of_mesh('shard', shards), sum: 'units', keeps_whole: stages > 1 }, ...inner].filter(a => a.size > 1);
        all.push({ name: axes.map(a => a.name + '=' + a.size).join() || 'single', one_process: false, splits_model: stages > 1, axes });
      }
  }
  return all;
}
// Predictions {name, prediction}, the fastest first.
function sweep(profile, link, setup, devices) {
  const layers = profile.divided.map(d => d.axes).filter(text => !text.includes(':') && (!setup.devices_per_host || product_of(layers_of_text(text)) <= setup.devices_per_host));
  return meshes(devices, profile.blocks.length, setup.batch_size, layers).map(plan => ({ name: plan.name, prediction: simulate_devices(plan, profile, link, setup, devices) }))
    .filter(x => x.prediction).sort((a, b) => a.prediction.step_s - b.prediction.step_s);
}
