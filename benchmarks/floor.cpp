// The physical floor of dispatch and combine on this machine: as many processes as there are ranks move the
// same bytes as the library, to places known beforehand, without a count, a flag or a wait. Nothing that
// moves these bytes between processes can be faster, so times are given as multiples of it.
//
//   g++ -O3 -march=native -ffp-contract=off -std=c++20 floor.cpp -o floor -pthread
//   ./floor [--ep N] [--tokens N] [--hidden N] [--topk N] [--experts N] [--dtype fp8|bf16] [--routing FD]
//
// It reads commands from its standard input: `run N` makes it time N rounds of every operation, once with
// plain and once with streaming stores (`run N plain` and `run N stream`: only so), and print one line of
// JSON with the wall times in milliseconds: the end of the last process less the start of the first, after a
// barrier. It ends with its input.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "floor_control.hpp"
#include "floor_rank.hpp"

namespace {

template <bool kStream>
void run_round(const Shared& shared, Rank& rank, int rank_idx, int round) {
    const auto stamp = [&](int op) -> Stamp& { return shared.stamp(rank_idx, round, kStream, op); };
    timed(shared, stamp(0), [&] { rank.dispatch<kStream>(); });
    timed(shared, stamp(1), [&] { rank.combine<kStream>(); });
    pthread_barrier_wait(&shared.control->ranks);  // what is not timed must not take a core from what is
    rank.write_shared_rows();
    timed(shared, stamp(2), [&] { rank.combine_zero_copy<kStream>(); });
    timed(shared, stamp(3), [&] {
        rank.dispatch<kStream>();
        rank.combine<kStream>();
    });
}

[[noreturn]] void rank_main(const Shared& shared, const Work& work, int rank_idx, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    Rank rank(work, rank_idx);
    run_round<false>(shared, rank, rank_idx, 0);  // touches the pages
    pthread_barrier_wait(&shared.control->ranks);
    run_round<true>(shared, rank, rank_idx, 0);
    pthread_barrier_wait(&shared.control->ranks);
    if (!rank.check()) {
        std::fprintf(stderr, "floor: rank %d: %s kernels differ from the plain ones\n", rank_idx,
                     kernels::kName);
        _exit(3);
    }
    pthread_barrier_wait(&shared.control->everyone);
    for (;;) {
        pthread_barrier_wait(&shared.control->everyone);
        for (int round = 0; round < shared.control->num_rounds; ++round) {
            if (shared.control->with[0]) run_round<false>(shared, rank, rank_idx, round);
            if (shared.control->with[1]) run_round<true>(shared, rank, rank_idx, round);
        }
        pthread_barrier_wait(&shared.control->everyone);
    }
}

void print_walls(const Shared& shared, int stream, int op) {
    std::printf("\"%s\": [", kStores[stream]);
    for (int round = 0; round < shared.control->num_rounds; ++round) {
        std::printf("%s%.5f", round ? ", " : "", wall_ms(shared, round, stream, op));
    }
    std::printf("]");
}

void print_results(const Shared& shared) {
    const bool* with = shared.control->with;
    std::printf("{");
    for (int op = 0; op < kNumOps; ++op) {
        std::printf("%s\"%s\": {", op ? ", " : "", kOps[op]);
        if (with[0]) print_walls(shared, 0, op);
        if (with[0] && with[1]) std::printf(", ");
        if (with[1]) print_walls(shared, 1, op);
        std::printf("}");
    }
    std::printf("}\n");
    std::fflush(stdout);
}

struct Options {
    Shape shape;
    int routing_fd = -1;
};

[[noreturn]] void usage(const std::string& what) {
    std::fprintf(stderr, "floor: %s; the head of floor.cpp tells the usage\n", what.c_str());
    std::exit(2);
}

Options parse(int argc, char** argv) {
    Options options;
    Shape& shape = options.shape;
    std::map<std::string, int*> numbers = {
        {"--ep", &shape.ranks},  {"--tokens", &shape.tokens},   {"--hidden", &shape.hidden},
        {"--topk", &shape.topk}, {"--experts", &shape.experts}, {"--routing", &options.routing_fd},
    };
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
        if (name == "--dtype" && (value == "fp8" || value == "bf16")) {
            shape.fp8 = value == "fp8";
        } else if (numbers.contains(name) && !value.empty()) {
            *numbers[name] = std::atoi(value.c_str());
        } else {
            usage("not an option with its value: " + name + " " + value);
        }
    }
    if (!shape.valid()) usage("this shape is not possible (experts % ep, hidden % 128, topk <= experts)");
    return options;
}

// The experts of every (rank, token, k) as 32-bit integers, in a file that the harness left open for us.
std::vector<int32_t> read_routing(int fd, const Shape& shape) {
    std::vector<int32_t> chosen(shape.selections());
    const size_t bytes = chosen.size() * sizeof(int32_t);
    if (pread(fd, chosen.data(), bytes, 0) != static_cast<ssize_t>(bytes)) usage("the routing is too short");
    for (const int32_t expert : chosen) {
        if (expert < -1 || expert >= shape.experts) usage("the routing names an expert that does not exist");
    }
    return chosen;
}

// Children that nobody waits for stay zombies where process 1 does not collect orphans.
class Children {
   public:
    void add(pid_t child) { pids_.push_back(child); }
    ~Children() {
        signal(SIGCHLD, SIG_DFL);
        for (const pid_t child : pids_) kill(child, SIGKILL);
        for (const pid_t child : pids_) waitpid(child, nullptr, 0);
    }

   private:
    std::vector<pid_t> pids_;
};

void on_child_end(int) {
    constexpr char kMessage[] = "floor: a rank process died\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(3);
}

bool understand(const std::string& line, Control& control) {
    std::istringstream words(line);
    std::string verb, store;
    words >> verb >> control.num_rounds >> store;
    control.with[0] = store != "stream";
    control.with[1] = store != "plain";
    const bool known = store.empty() || store == "plain" || store == "stream";
    return verb == "run" && known && control.num_rounds >= 1 && control.num_rounds <= kMaxRounds;
}

bool serve(const Shared& shared) {
    std::string line;
    while (std::getline(std::cin, line)) {
        if (!understand(line, *shared.control)) {
            std::fprintf(stderr, "floor: expected `run N [plain|stream]`, N up to %d, not: %s\n", kMaxRounds,
                         line.c_str());
            return false;
        }
        pthread_barrier_wait(&shared.control->everyone);
        pthread_barrier_wait(&shared.control->everyone);
        print_results(shared);
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const Shape& shape = options.shape;
    const Work work(shape,
                    options.routing_fd < 0 ? random_routing(shape) : read_routing(options.routing_fd, shape));
    const Shared shared(shape.ranks);
    const pid_t parent = getpid();
    signal(SIGCHLD, on_child_end);
    Children children;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        const pid_t child = fork();
        if (child == 0) rank_main(shared, work, rank, parent);
        children.add(child);
    }
    pthread_barrier_wait(&shared.control->everyone);
    std::printf("{\"ready\": true, \"kernels\": \"%s\"}\n", kernels::kName);
    std::fflush(stdout);
    return serve(shared) ? 0 : 2;
}
