// See memory.hpp.
#include "memory.hpp"

namespace ptx {

u32 Memory::allocate(u64 bytes, u64 align, const std::string& name, int gpu) {
    u64 begin = (top_ + kGranule - 1) / kGranule * kGranule;
    if (align >= kGranule) begin = (begin + align - 1) / align * align;
    // No more aligned than was asked for: code that needs more is then caught.
    if (align < kGranule) begin += align;
    const u64 end = begin + (bytes == 0 ? 1 : bytes);
    if (end + 2 * kGranule > size_) return 0;
    top_ = end + kGranule;
    const u32 number = static_cast<u32>(allocations_.size());
    for (u64 granule = begin / kGranule; granule <= (end - 1) / kGranule; ++granule)
        granules_[granule] = number;
    allocations_.push_back(Allocation{begin, end, name, gpu});
    return number;
}

u32 Memory::take_again(u64 bytes, const std::string& name, int gpu) {
    auto& free = free_[bytes];
    if (free.empty()) return allocate(bytes, 1024, name, gpu);
    const u32 number = free.back();
    free.pop_back();
    allocations_[number].name = name;
    allocations_[number].gpu = gpu;
    return number;
}

u32 Memory::before(u64 offset) const {
    u32 best = 0;
    for (u32 i = 1; i < allocations_.size(); ++i)
        if (allocations_[i].begin <= offset && allocations_[i].begin >= allocations_[best].begin) best = i;
    return best;
}

std::string Memory::name(u64 offset) const {
    const u32 found = find(offset);
    if (found == 0) return "no allocation";
    const Allocation& allocation = allocations_[found];
    const std::string where = allocation.gpu < 0 ? "host" : "gpu" + std::to_string(allocation.gpu);
    return allocation.name + "@" + where + "+" + std::to_string(offset - allocation.begin);
}

}  // namespace ptx
