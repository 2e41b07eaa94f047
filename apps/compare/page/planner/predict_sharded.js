// internal/predict_sharded.cpp. Either of forward and backward may be null.
class ShardedStep {
  constructor(c, blocks, forward, backward, gathers, divides) {
    const count = blocks.end - blocks.begin;
    this.c = c;
    this.blocks = blocks;
    this.phases = [];
    this.collectives = [];
    this.units = [];
    this.layer_waits = [];
    const add_phase = (seconds, needs, waits, b, pass) => {
      if (waits > 0) this.layer_waits.push({ phase: this.phases.length, block: b, backward: pass === backward, samples: pass.samples });
      this.phases.push({ seconds, needs });
    }, block = k => c.profile.blocks[blocks.begin + k];
    if (forward) {
      for (let k = 0; k < count; ++k) add_phase(forward.blocks_s[k], gathers ? this.post(blocks.begin + k, k - 1, true) : -1, forward.layers_s[k], block(k), forward);
      add_phase(forward.loss_s, -1, forward.loss_layers_s, c.profile.loss, forward);
    }
    this.forward_end = this.phases.length;
    if (!backward) return;
    add_phase(backward.loss_s, -1, backward.loss_layers_s, c.profile.loss, backward);
    const gather_of = range(count).map(() => -1), phase_of = k => this.forward_end + count - k;
    const gather = (k, after, at_begin) => { if (gathers) gather_of[k] = this.post(blocks.begin + k, after, at_begin); };
    gather(count - 1, this.forward_end, false);
    if (count > 1) gather(count - 2, phase_of(count - 1), true);
    for (let k = count; k-- > 0;) {
      if (divides) this.add(blocks.begin + k, phase_of(k));
      if (k >= 2) gather(k - 2, phase_of(k - 1), true);
    }
    for (let k = count; k-- > 0;) add_phase(backward.blocks_s[k], gather_of[k], backward.layers_s[k], block(k), backward);
  }
  post(block, after, at_begin) {
    const axis = this.c.dividing_axis, bytes = all_parameter_bytes(this.c.profile.blocks[block]);
    this.collectives.push({ seconds: this.c.gather_s(axis, bytes), after, at_begin, queue: axis, follows: -1 });
    this.units.push({ gathers: true, block, bytes, axis });
    return this.collectives.length - 1;
  }
  add(block, after) {
    let follows = -1;
    this.c.each_sum(all_parameter_bytes(this.c.profile.blocks[block]), part_bytes(this.c.profile.blocks[block]), (axis, bytes, divides) => {
      this.collectives.push({ seconds: this.c.reduce_s(axis, bytes, divides), after, at_begin: false, queue: axis, follows });
      this.units.push({ gathers: false, block, bytes, axis });
      follows = this.collectives.length - 1;
    });
  }
  communication(times) {
    const { profile, dividing_axis } = this.c;
    const all = communication_of(times, this.phases, this.units.map(u => ({ name: profile.blocks[u.block].name + (u.gathers ? ' all_gather' : u.axis === dividing_axis ? ' reduce_scatter' : ' all_reduce'),
      subject: { ...moved(this.c, u.axis, u.bytes), block: profile.blocks[u.block].name } })));
    for (const w of this.layer_waits) all.push(...block_waits(this.c, w.block, w.backward, w.samples, times.phase_ended_s[w.phase]));
    return all;
  }
  divided_after(times, k) {
    const next = this.forward_end + 1 + this.blocks.end - k;
    for (let i = 0; k > this.blocks.begin && i < this.units.length; ++i)
      if (!this.units[i].gathers && this.units[i].axis === this.c.dividing_axis && this.units[i].block === k && times.computing_s[next] > 0)
        return 1 + (times.collective_ended_s[i] - times.phase_ended_s[next]) / times.computing_s[next];
    return 1;
  }
}

function predict_sharded_models(c) {
  const all = c.all_blocks, samples = c.samples_per_device, slowdown = c.collectives.contention, b = no_breakdown();
  const step = new ShardedStep(c, all, forward_times(c, all, samples[0], true, slowdown.forward), backward_times(c, all, samples[0], true, slowdown.backward), true, true);
  const times = simulate_queues(step.phases, step.collectives, c.interference);
  for (let i = 0; i < times.computing_s.length; ++i) {
    b[i < step.forward_end ? 'forward_s' : 'backward_s'] += times.computing_s[i];
    b.exposed_comm_s += times.waiting_s[i];
  }
  b.exposed_comm_s += times.tail_s;
  b.update_s = slowdown.update * c.update(all) / c.model_parts;
  const divided_after = range(c.count).map(k => c.axes.length > 1 ? 1 : step.divided_after(times, k));
  const timeline = [], forward_end = times.phase_ended_s[step.forward_end - 1], end = times.phase_ended_s[times.phase_ended_s.length - 1] + times.tail_s;
  add_span(timeline, 0, 'forward', 'forward', 0, forward_end);
  add_span(timeline, 0, 'backward', 'backward', forward_end, end);
  add_communication(timeline, 0, 0, step.communication(times));
  add_span(timeline, 0, 'optimizer', 'update', end, end + b.update_s);
  const held = [], kept = {};
  const memory = memory_of_ranks(samples, (n, r) => peak_memory(c, { range: all, samples: [n], actions: ONE_PASS, data: c.batch_bytes(n), optimizer_share: 1 / c.model_parts, sharded: c.model_parts, divided_after, held: r === 0 ? held : null }));
  keep_memory_over_time(kept, 0, memory[0], on_clock(held, [[0, forward_end], [forward_end, end]]));
  return { breakdown: b, timeline, rows: 1, axes: axes_of(c, times.exposed_s, sent_by_axis(c, all, 2).map(x => x * c.devices)), memory, memory_over_time: kept };
}
