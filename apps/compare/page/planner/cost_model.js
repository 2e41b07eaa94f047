// internal/cost_model.h. A setup is {batch_size, devices, device_type, micro_batches, first_bucket_bytes,
// bucket_cap_bytes, split, devices_per_host, links_per_host}. An axis is {name, size, sum, zero, schedule, keeps_whole, layers,
// options, samples, copies, parts, costs}; one of with_sums() has the places of joined axes in `of`, and says in `of_parts` that it adds
// the gradients of divided parameters alone.
function chunk_sizes(samples, chunks) {
  const n = Math.min(Math.max(samples, 1), chunks), size = Math.floor(samples / n), rest = samples - size * n;
  return range(n).map(c => c < rest ? size + 1 : size);
}
const all_parameter_bytes = block => block.parameter_bytes.reduce((a, b) => a + b, 0);
const part_bytes = block => block.parts.reduce((a, i) => a + block.parameter_bytes[i], 0);
const divides_batch = axis => !axis.of && (axis.samples || axis.sum !== 'none');

// LayerCollectives in profile.h.
function layers_seconds(sent, costs, n) {
  const gather = is_free(costs.gather_message) ? costs.message : costs.gather_message, scatter = is_free(costs.scatter_message) ? costs.message : costs.scatter_message;
  const of = (m, cost) => m.count > 0 ? m.count * cost.latency_s + at_(m.bytes, n) * cost.s_per_byte : 0;
  const waits = of(sent.all_reduce, costs.message) + of(sent.all_gather, gather) + of(sent.reduce_scatter, scatter);
  if (sent.beside.count === 0) return waits;
  const passing = costs.overlap_slowdown * of(sent.beside, is_free(costs.peer_message) ? costs.message : costs.peer_message);
  return waits + Math.max(passing - at_(sent.beside_s, n), costs.compute_stall * passing);
}
const layers_bytes = (sent, n) => at_(sent.all_reduce.bytes, n) + at_(sent.all_gather.bytes, n) + at_(sent.reduce_scatter.bytes, n) + at_(sent.beside.bytes, n);
const layers_whole_bytes = (sent, n, devices) => Math.round((at_(sent.all_reduce.bytes, n) / 2 + at_(sent.all_gather.bytes, n) + at_(sent.reduce_scatter.bytes, n)) * devices / (devices - 1) + at_(sent.beside.bytes, n));

class CostModel {
  constructor(profile, link, setup, axes, one_process) {
    this.profile = profile;
    this.link = link;
    this.setup = setup;
    this.devices = setup.devices;
    this.axes = axes;  // from the innermost to the outermost
    this.interference = axes.map(a => a.costs);
    this.one_process = one_process;
    this.collectives = one_process ? link.local : link.ranks;
    this.data_size = this.devices_where(divides_batch);
    this.model_parts = this.devices_where(d => d.sum === 'units');
    const dividing = of_parts => axes.findIndex(a => (a.sum === 'units' || a.zero > 0) && (a.of_parts === true) === of_parts);
    this.dividing = [false, true].map(of_parts => ({ axis: dividing(of_parts), of_parts })).filter(d => d.axis >= 0);  // each_dividing()
    this.dividing_axis = dividing(false) < 0 ? axes.length : dividing(false);
    this.zero = dividing(false) < 0 ? 0 : axes[this.dividing_axis].zero;
    this.divides_buckets = this.zero === 2 && axes[this.dividing_axis].size > 1;
    this.adds_in_buckets = axes.every(a => a.sum !== 'units') && axes.some(a => a.sum === 'buckets');
    this.batch = setup.batch_size;
    this.count = profile.blocks.length;
    this.all_blocks = { begin: 0, end: this.count };
    this.samples_per_device = chunk_sizes(setup.batch_size, this.data_size);
    this.devices_of_sample = this.devices_where(a => a.layers && !divides_batch(a));
    this.on_gpus = setup.device_type === 'cuda';
  }
  devices_where(property) { return this.axes.reduce((product, a) => property(a) ? product * a.size : product, 1); }
  each_sum(bytes, parts, f) {
    this.axes.forEach((a, i) => {
      if (a.sum === 'none') return;
      const divides = a.sum === 'units' || a.zero === 2;
      f(i, a.sum === 'units' ? bytes : a.of_parts ? parts : bytes - parts, divides);
      if (a.sum !== 'units') return;
      bytes /= a.size;
      parts /= a.size;
    });
  }
  unsummed_bytes(b) { return this.axes.some(a => a.of_parts) ? 0 : part_bytes(b); }
  axis_of(sent) { return this.axes.findIndex(a => a.name === sent.axis); }
  reduce_s(axis, bytes, divides) {
    const a = this.axes[axis];
    return divides ? scatter_s(a.costs, bytes, a.size) : ring_time(a.costs.message, bytes, a.size);
  }
  divided_bytes(blocks, of_parts) {
    if (of_parts) return this.part_bytes(blocks);
    return this.parameter_bytes(blocks) - (this.zero > 0 ? this.part_bytes(blocks) : 0);
  }
  optimizer_share(blocks) {
    const own = of_parts => {
      const d = this.dividing.find(x => x.of_parts === of_parts);
      return d ? 1 / this.axes[d.axis].size : 1;
    };
    const parts = this.zero > 0 ? this.part_bytes(blocks) : 0;
    if (parts === 0) return own(false);
    return (own(false) * this.divided_bytes(blocks, false) + own(true) * parts) / this.parameter_bytes(blocks);
  }
  gather_s(axis, bytes) { return gather_s(this.axes[axis].costs, bytes, this.axes[axis].size); }
  sent_bytes(i, bytes) { return bytes * (this.axes[i].size - 1) / this.axes[i].size; }
  layers_s(sent, n) { return sent.reduce((seconds, s) => seconds + layers_seconds(s, this.axes[this.axis_of(s)].costs, n), 0); }
  sum(blocks, value) {
    let total = 0;
    for (let k = blocks.begin; k < blocks.end; ++k) total += value(this.profile.blocks[k]);
    return total;
  }
  forward(blocks, n) { return this.sum(blocks, b => at_(b.forward_s, n)); }
  backward(blocks, n) { return this.sum(blocks, b => at_(b.backward_s, n)); }
  update(blocks) { return this.sum(blocks, b => b.update_s); }
  parameter_bytes(blocks) { return this.sum(blocks, all_parameter_bytes); }
  part_bytes(blocks) { return this.sum(blocks, part_bytes); }
  parameter_count() { return this.sum(this.all_blocks, b => b.parameter_bytes.length); }
  largest_parameter_bytes() { return Math.max(0, ...this.profile.blocks.flatMap(b => b.parameter_bytes)); }
  output_bytes(n) { return at_(this.profile.blocks[this.count - 1].output_bytes, n); }
  input_bytes(block, n) { return block === 0 ? this.profile.input_sample_bytes * n : at_(this.profile.blocks[block - 1].output_bytes, n); }
  batch_bytes(n) { return n * (this.profile.input_sample_bytes + this.profile.target_sample_bytes); }
}
