// Release and acquire: what a strong write publishes and what a strong read learns.
#include "machine.hpp"

namespace ptx {

void Machine::publish(u32 thread, u64 offset, u32 cls, bool release, bool update) {
    Thread& self = threads[thread];
    bool fence = false;
    for (const Knowledge& fenced : self.fenced) fence = fence || fenced.thread != kNobody;
    if (!release && !fence && (update || shadow.find_released(offset) == nullptr)) return;
    auto& list = shadow.released(offset);
    // Only updates continue what earlier writers released.
    if (!update) list.clear();
    std::erase_if(
        list, [&](const Released& old) { return old.knowledge.thread == thread && old.write_scope <= cls; });
    const u8 scope = static_cast<u8>(cls);
    for (u32 i = 0; i < 3; ++i)
        if (self.fenced[i].thread != kNobody)
            list.push_back({self.fenced[i], static_cast<u8>(kCta + i), scope});
    if (!release) return;
    list.push_back({knowledge(thread), scope, scope});
    tick(thread);
}

void Machine::observe(u32 thread, u64 offset, u32 cls, bool acquire) {
    const auto* list = shadow.find_released(offset);
    if (list == nullptr) return;
    Thread& self = threads[thread];
    for (const Released& item : *list) {
        const u32 writer = item.knowledge.thread;
        if (writer == thread || self.others->seen[writer] >= item.knowledge.time) continue;
        if (!covers(item.write_scope, writer, thread) || !covers(item.release_scope, writer, thread))
            continue;
        if (!covers(cls, thread, writer)) continue;
        if (acquire) {
            learn(self.others, item.knowledge);
            continue;
        }
        // Known only after a fence whose scope covers the writer.
        u32 needed = kCta;
        while (!covers(needed, thread, writer)) ++needed;
        ClockRef& seen = self.seen[needed - kCta];
        if (seen.get() == nullptr) seen = ClockRef(static_cast<u32>(threads.size()));
        if (seen->seen[writer] < item.knowledge.time) learn(seen, item.knowledge);
    }
}

}  // namespace ptx
