// ucx_link.cpp: filling messages, sending them, and letting those of peers land.
#include "symm/ucx/ucx_link.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "core/check.hpp"
#include "symm/doorbell.hpp"

namespace deep_ll {
namespace {

constexpr int kLooks = 64;                        // of the attendant, before others get the lock
constexpr std::int64_t kClosingNs = 500'000'000;  // for what UCX itself still holds
constexpr std::int64_t kBrieflyNs = 50'000'000;   // before somebody is asked whether to go on

}  // namespace

UcxLink::UcxLink(const LandingPlace& place, const WorkerOptions& options, std::int64_t patience_ns)
    : place_(place),
      landing_(place),
      worker_(std::in_place, options),
      address_(worker_->address()),
      version_(worker_->ucp().version),
      patience_{patience_ns, nullptr} {
    for (int peer = 0; peer < place.size; ++peer) peers_.push_back(make_peer());
    worker_->receive(arrived, this);
    const auto look = [this] {
        const std::scoped_lock held(lock_);
        if (closed_) return true;
        for (int i = 0; i < kLooks && worker_->progress();) ++i;
        return worker_->arm();
    };
    attendant_.emplace(look, worker_->event_fd());
}

UcxLink::~UcxLink() {
    close(0);
}

std::unique_ptr<Peer> UcxLink::make_peer() const {
    auto peer = std::make_unique<Peer>();
    peer->ucp = &worker_->ucp();
    return peer;
}

void UcxLink::expect_anew(int peer, std::uint64_t first_number) {
    const std::scoped_lock held(lock_);
    DEEP_LL_INVARIANT(!closed_ && peer != place_.rank, peer);
    former_.push_back(std::exchange(peers_[peer], make_peer()));
    former_.back()->free_idle();
    peers_[peer]->next_number = first_number;
    landing_.begin(peer, first_number);
}

void UcxLink::connect(int peer, const std::string& address) {
    Peer& to = *peers_[peer];
    const std::scoped_lock filling(to.filling);
    {
        const std::scoped_lock held(lock_);
        DEEP_LL_INVARIANT(to.ep == nullptr && !closed_ && peer != place_.rank, peer);
        to.ep = worker_->connect(address, failed, &to);
    }
    // An empty message, so that the first real one finds the connection made.
    if (open_message(to)) send_message(to);
}

std::vector<int> UcxLink::meet(const std::vector<int>& peers, std::int64_t timeout_ns) {
    const std::int64_t deadline_ns = now_ns() + timeout_ns;
    for (;;) {
        const bool has_moved = progress();
        const std::vector<int> unheard = find_unheard(peers);
        const auto is_lost = [&](int peer) { return dead(peer); };
        const bool is_hopeless = std::any_of(unheard.begin(), unheard.end(), is_lost);
        if (unheard.empty() || is_hopeless || now_ns() >= deadline_ns) return unheard;
        // Sleeps: many ranks on few cores that only yield here keep each other from what they wait for.
        if (!has_moved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::vector<int> UcxLink::find_unheard(const std::vector<int>& peers) {
    const std::scoped_lock held(lock_);
    std::vector<int> unheard;
    const auto is_unheard = [&](int peer) { return !landing_.heard(peer); };
    std::copy_if(peers.begin(), peers.end(), std::back_inserter(unheard), is_unheard);
    return unheard;
}

std::string UcxLink::why_dead(int peer) {
    const std::scoped_lock held(lock_);
    if (closed_) return "this link is closed";
    return worker_->ucp().status_string(peers_[peer]->why());
}

void UcxLink::put(int peer, std::uint64_t offset, const void* from, std::uint64_t bytes) {
    DEEP_LL_INVARIANT(offset >= sizeof(HeapHeader) && offset <= place_.heap_bytes, offset);
    DEEP_LL_INVARIANT(bytes <= place_.heap_bytes - offset, bytes);
    Peer& to = *peers_[peer];
    const std::scoped_lock filling(to.filling);
    std::uint64_t done = 0;
    while (done < bytes && open_message(to)) {
        const std::uint64_t added =
            to.writer->add(offset + done, static_cast<const std::uint8_t*>(from) + done, bytes - done);
        done += added;
        if (done < bytes) send_message(to);
    }
    ++to.sent.puts;
    to.sent.bytes_sent += bytes;
}

void UcxLink::signal(int peer, std::span<const LinkWord> words) {
    Peer& to = *peers_[peer];
    const std::scoped_lock filling(to.filling);
    for (const LinkWord& word : words) {
        DEEP_LL_INVARIANT(word.offset % sizeof word.word == 0 && word.offset >= sizeof(HeapHeader) &&
                              word.offset <= place_.heap_bytes - sizeof word.word,
                          word.offset);
        while (open_message(to) && !to.writer->add(word)) send_message(to);
    }
    ++to.sent.signals;
    send_message(to);
}

void UcxLink::leave_out(int peer, const LinkWord& last) {
    Peer& to = *peers_[peer];
    const std::scoped_lock filling(to.filling);
    if (to.left_out.load()) return;
    if (!to.writer) {
        const std::scoped_lock held(lock_);
        const bool possible = to.reachable() && to.ep != nullptr && !closed_;
        to.open = possible ? idle_buffer(to) : nullptr;
    }
    if (to.open != nullptr && (begin_message(to), to.writer->add(last))) send_message(to);
    to.left_out.store(true);
    const std::scoped_lock held(lock_);
    landing_.refuse(peer, true);
}

void UcxLink::take_back(int peer) {
    peers_[peer]->left_out.store(false);
    const std::scoped_lock held(lock_);
    landing_.refuse(peer, false);
}

bool UcxLink::progress() {
    if (attendant_) attendant_->stand_by();
    // Who finds the lock taken finds somebody at it.
    const std::unique_lock held(lock_, std::try_to_lock);
    return held.owns_lock() && !closed_ && worker_->progress();
}

void UcxLink::rest() {
    if (attendant_) attendant_->take_over();
}

// False: there is nobody to send to.
bool UcxLink::open_message(Peer& peer) {
    if (!peer.writer) {
        peer.open = peer.left_out.load() ? nullptr : take_buffer(peer);
        if (peer.open == nullptr) return false;
        begin_message(peer);
    }
    return true;
}

void UcxLink::begin_message(Peer& peer) {
    if (peer.writer) return;
    const auto sender = static_cast<std::uint32_t>(place_.rank);
    peer.writer.emplace(peer.open->bytes, MessageHead{place_.secret, peer.next_number++, sender, 0, 0});
}

// Waits while too much is on its way, and lets arrivals land meanwhile: both ends may be waiting like this.
// Null: there is nobody to send to.
Buffer* UcxLink::take_buffer(Peer& peer) {
    for (const std::int64_t since_ns = now_ns(); !peer.given_up.load(); yield()) {
        {
            const std::scoped_lock held(lock_);
            if (!peer.reachable() || peer.ep == nullptr || closed_) return nullptr;
            if (Buffer* buffer = idle_buffer(peer)) return buffer;
        }
        if (is_patient(since_ns)) continue;
        peer.given_up.store(true);
        // Whoever has a policy of its own waits for words, and finds that they do not come.
        if (patience_.interrupted == nullptr) peer.die(UCS_ERR_TIMED_OUT);
    }
    return nullptr;
}

// Null: all are on their way.
Buffer* UcxLink::idle_buffer(Peer& peer) {
    if (peer.idle.empty() && peer.buffers.size() == kMessagesPerPeer) worker_->progress();
    if (peer.idle.empty() && peer.buffers.size() < kMessagesPerPeer) {
        peer.buffers.emplace_back(new Buffer);
        peer.buffers.back()->peer = &peer;
        peer.idle.push_back(peer.buffers.back().get());
    }
    if (peer.idle.empty()) return nullptr;
    Buffer* buffer = peer.idle.back();
    peer.idle.pop_back();
    return buffer;
}

bool UcxLink::is_patient(std::int64_t since_ns) const {
    const std::int64_t waited_ns = now_ns() - since_ns;
    if (patience_.timeout_ns != 0 && waited_ns >= patience_.timeout_ns) return false;
    return waited_ns < kBrieflyNs || patience_.interrupted == nullptr || !patience_.interrupted();
}

void UcxLink::send_message(Peer& peer) {
    if (peer.writer) send_bytes(peer, peer.writer->finish());
}

void UcxLink::send_bytes(Peer& peer, std::uint64_t bytes) {
    Buffer* buffer = peer.open;
    peer.open = nullptr;
    peer.writer.reset();
    ++peer.sent.messages_sent;
    if (attendant_) attendant_->stand_by();  // who sends will soon look, too
    const std::scoped_lock held(lock_);
    const bool possible = peer.reachable() && !closed_;
    const ucs_status_ptr_t request =
        possible ? worker_->send(peer.ep, buffer->bytes, bytes, sent, buffer) : nullptr;
    if (UCS_PTR_IS_ERR(request)) peer.die(UCS_PTR_STATUS(request));
    if (!UCS_PTR_IS_PTR(request)) peer.idle.push_back(buffer);
}

void UcxLink::sent(void* request, ucs_status_t status, void* context) {
    auto* buffer = static_cast<Buffer*>(context);
    if (status != UCS_OK) buffer->peer->die(status);
    buffer->peer->idle.push_back(buffer);
    buffer->peer->ucp->request_free(request);
}

void UcxLink::failed(void* peer, ucp_ep_h, ucs_status_t status) {
    static_cast<Peer*>(peer)->die(status);
}

ucs_status_t UcxLink::arrived(void* context,
                              const void*,
                              std::size_t header_bytes,
                              void* data,
                              std::size_t bytes,
                              const ucp_am_recv_param_t* params) {
    Landing& landing = static_cast<UcxLink*>(context)->landing_;
    // Never from us: what is still to be fetched from its sender. It is left there.
    const bool is_here = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    if (!is_here || header_bytes != 0) {
        landing.drop();
    } else {
        landing.land(static_cast<const std::uint8_t*>(data), bytes);
    }
    return UCS_OK;
}

LinkStats UcxLink::stats(int peer) {
    const std::scoped_lock filling(peers_[peer]->filling);
    const std::scoped_lock held(lock_);
    LinkStats stats = peers_[peer]->sent;
    landing_.describe(peer, stats);
    return stats;
}

std::uint64_t UcxLink::dropped() {
    const std::scoped_lock held(lock_);
    return landing_.dropped();
}

void UcxLink::send_raw(int peer, const void* message, std::uint64_t bytes) {
    DEEP_LL_INVARIANT(bytes <= kMessageBytes, bytes);
    Peer& to = *peers_[peer];
    const std::scoped_lock filling(to.filling);
    send_message(to);
    to.open = take_buffer(to);
    if (to.open == nullptr) return;
    std::memcpy(to.open->bytes, message, bytes);
    send_bytes(to, bytes);
}

void UcxLink::close(std::int64_t timeout_ns) {
    for (const auto& peer : peers_) {
        const std::scoped_lock filling(peer->filling);
        send_message(*peer);
    }
    {
        const std::scoped_lock held(lock_);
        if (closed_) return;
        close_connections(timeout_ns);
        closed_ = true;
    }
    attendant_.reset();
    // Only now are the sockets closed that peers had opened, and peers see that nobody is here.
    const std::scoped_lock held(lock_);
    worker_.reset();
}

// Messages are counted, not only flushed: UCX's flushes may stay pending for ever once the peer has closed
// its end. They are for the rest of a message that UCX keeps in a buffer of its own.
void UcxLink::close_connections(std::int64_t timeout_ns) {
    const std::int64_t deadline_ns = now_ns() + timeout_ns;
    const auto has_left = [](const Peer& peer) { return peer.idle.size() == peer.buffers.size(); };
    const auto is_awaited = [&](const std::unique_ptr<Peer>& peer) {
        return peer->reachable() && !peer->given_up.load() && !peer->left_out.load() && !has_left(*peer);
    };
    while (std::any_of(peers_.begin(), peers_.end(), is_awaited) && now_ns() < deadline_ns) {
        if (!worker_->progress()) yield();
    }
    std::vector<ucs_status_ptr_t> flushes;
    for (const auto& peer : peers_) {
        if (peer->ep != nullptr && peer->reachable() && has_left(*peer))
            flushes.push_back(worker_->flush(peer->ep));
    }
    worker_->finish(flushes, now_ns() + kClosingNs);
    for (const auto* peers : {&peers_, &former_})
        for (const auto& peer : *peers)
            if (peer->ep != nullptr) worker_->close(peer->ep);
    // Who still waits for a peer shall hear that it waits in vain.
    for (const auto& peer : peers_) peer->die(UCS_ERR_CANCELED);
}

}  // namespace deep_ll
