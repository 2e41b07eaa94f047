// internal/step_queues.cpp. A phase is {seconds, needs}, a collective {seconds, after, at_begin, queue, follows}.
function simulate_queues(phases, collectives, interference) {
  const result = { computing_s: phases.map(() => 0), waiting_s: phases.map(() => 0), tail_s: 0, phase_ended_s: [], collective_began_s: collectives.map(() => -1), collective_ended_s: collectives.map(() => 0), exposed_s: interference.map(() => 0) };
  const queues = interference.map((link, q) => ({ link, collectives: range(collectives.length).filter(i => collectives[i].queue === q), next: 0, left: 0, ends: Infinity }));
  for (const q of queues) if (q.collectives.length) q.left = collectives[q.collectives[0]].seconds;
  const ended = collectives.map(() => false), has_ended = i => i < 0 || ended[i];
  let phase = 0, open = collectives.length, begun = false, now = 0, left = 0;
  const runs = q => {
    if (q.next === q.collectives.length) return false;
    const w = collectives[q.collectives[q.next]];
    return (w.after < phase || (w.at_begin && w.after === phase && begun)) && has_ended(w.follows);
  };
  while (phase < phases.length || open > 0) {
    if (phase < phases.length && !begun && has_ended(phases[phase].needs)) {
      begun = true;
      left = phases[phase].seconds;
    }
    let stall = 0, busy = queues.length;
    queues.forEach((q, i) => {
      q.ends = Infinity;
      if (!runs(q)) return;
      busy = i;
      const next = q.collectives[q.next];
      if (result.collective_began_s[next] < 0) result.collective_began_s[next] = now;
      stall += q.link.compute_stall;
      q.ends = begun ? q.left * q.link.overlap_slowdown : q.left;
    });
    if (!begun && busy === queues.length) throw new Error('phase ' + phase + ' and a collective wait for each other');
    const speed = begun ? Math.max(0, 1 - stall) : 0, phase_ends = speed > 0 ? left / speed : begun && left <= 0 ? 0 : Infinity;
    let passed = phase_ends;
    for (const q of queues) passed = Math.min(passed, q.ends);
    if (begun) result.computing_s[phase] += passed;
    else if (phase < phases.length) {
      result.waiting_s[phase] += passed;
      result.exposed_s[collectives[phases[phase].needs].queue] += passed;
    } else {
      result.tail_s += passed;
      result.exposed_s[busy] += passed;
    }
    now += passed;
    left -= passed * speed;
    for (const q of queues) {
      if (q.ends === Infinity) continue;
      if (q.ends > passed) {
        q.left -= begun ? passed / q.link.overlap_slowdown : passed;
        continue;
      }
      const done = q.collectives[q.next++];
      ended[done] = true;
      result.collective_ended_s[done] = now;
      --open;
      if (q.next < q.collectives.length) q.left = collectives[q.collectives[q.next]].seconds;
    }
    if (phase_ends <= passed) {
      ++phase;
      result.phase_ended_s.push(now);
      begun = false;
    }
  }
  return result;
}
