// internal/cost_model.h. A setup is {batch_size, devices, device_type, micro_batches, first_bucket_bytes,
// bucket_cap_bytes, split}.
function chunk_sizes(samples, chunks) {
  const n = Math.min(Math.max(samples, 1), chunks), size = Math.floor(samples / n), rest = samples - size * n;
  return range(n).map(c => c < rest ? size + 1 : size);
}
const all_parameter_bytes = block => block.parameter_bytes.reduce((a, b) => a + b, 0);

class CostModel {
  constructor(profile, link, setup, axes, one_process) {
    this.profile = profile;
    this.link = link;
    this.setup = setup;
    this.devices = setup.devices;
    this.axes = axes;  // from the innermost to the outermost
    this.one_process = one_process;
    this.collectives = one_process ? link.local : link.ranks;
    this.batch_parts = this.devices_where(d => d.sum !== 'none');
    this.model_parts = this.devices_where(d => d.sum === 'units');
    this.optimizer_parts = this.devices_where(d => d.sum === 'units' || d.zero > 0);
    this.batch = setup.batch_size;
    this.count = profile.blocks.length;
    this.all_blocks = { begin: 0, end: this.count };
    this.samples_per_device = chunk_sizes(setup.batch_size, this.batch_parts);
    this.on_gpus = setup.device_type === 'cuda';
  }
  devices_where(property) { return this.axes.reduce((product, a) => property(a) ? product * a.size : product, 1); }
  reduce_s(bytes) {
    let seconds = 0;
    for (const axis of this.axes) {
      if (axis.sum === 'units' || axis.zero === 2) {
        seconds += scatter_s(this.collectives, bytes, axis.size);
        bytes /= axis.size;
      } else seconds += ring_time(this.collectives.message, bytes, axis.size);
    }
    return seconds;
  }
  gather_s(bytes) { return gather_s(this.collectives, bytes, this.optimizer_parts); }
  sum(blocks, value) {
    let total = 0;
    for (let k = blocks.begin; k < blocks.end; ++k) total += value(this.profile.blocks[k]);
    return total;
  }
  forward(blocks, n) { return this.sum(blocks, b => at_(b.forward_s, n)); }
  backward(blocks, n) { return this.sum(blocks, b => at_(b.backward_s, n)); }
  update(blocks) { return this.sum(blocks, b => b.update_s); }
  parameter_bytes(blocks) { return this.sum(blocks, all_parameter_bytes); }
  parameter_count() { return this.sum(this.all_blocks, b => b.parameter_bytes.length); }
  largest_parameter_bytes() { return Math.max(0, ...this.profile.blocks.flatMap(b => b.parameter_bytes)); }
  output_bytes(n) { return at_(this.profile.blocks[this.count - 1].output_bytes, n); }
  input_bytes(block, n) { return block === 0 ? this.profile.input_sample_bytes * n : at_(this.profile.blocks[block - 1].output_bytes, n); }
  batch_bytes(n) { return n * (this.profile.input_sample_bytes + this.profile.target_sample_bytes); }
}
