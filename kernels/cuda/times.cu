/* What surrounds an op: its NVTX range and, where asked for, its time by a pair of events. */
#include "kernels/cuda/backend.h"
#include <vector>

struct Span {
    OpId op;
    cudaEvent_t start, end;
};

struct OpTimes {
    std::vector<Span> spans;    /* not yet read */
    double ms[OP_COUNT];
    int calls[OP_COUNT];
};

void op_times_free(OpTimes *times)
{
    if (!times) return;
    for (Span &s : times->spans) cudaEventDestroy(s.start), cudaEventDestroy(s.end);
    delete times;
}

void cuda_backend_time_ops(void *backend)
{
    CudaBackend *b = (CudaBackend *)backend;
    op_times_free(b->times);
    b->times = new OpTimes{};
}

double cuda_backend_op_ms(void *backend, OpId op, int *calls)
{
    CudaBackend *b = (CudaBackend *)backend;
    OpTimes *t = b->times;
    *calls = 0;
    if (!t) return 0;
    CUDA_CHECK("times", cudaStreamSynchronize(b->stream));
    for (Span &s : t->spans) {
        float ms;
        CUDA_CHECK("times", cudaEventElapsedTime(&ms, s.start, s.end));
        CUDA_CHECK("times", cudaEventDestroy(s.start));
        CUDA_CHECK("times", cudaEventDestroy(s.end));
        t->ms[s.op] += ms;
        t->calls[s.op]++;
    }
    t->spans.clear();
    *calls = t->calls[op];
    return t->ms[op];
}

OpRange::OpRange(const OpContext *ctx, OpId op) : backend(backend_of(ctx)), end(nullptr)
{
    nvtxEventAttributes_t range = {};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = op_name(op);
    range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    range.payload.llValue = ctx->layer;
    nvtxDomainRangePushEx(backend->ranges, &range);
    if (!backend->times) return;
    cudaStreamCaptureStatus capture;
    CUDA_CHECK("times", cudaStreamIsCapturing(backend->stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) return;
    Span span = {op, nullptr, nullptr};
    CUDA_CHECK("times", cudaEventCreate(&span.start));
    CUDA_CHECK("times", cudaEventCreate(&span.end));
    CUDA_CHECK("times", cudaEventRecord(span.start, backend->stream));
    backend->times->spans.push_back(span);
    end = span.end;
}

OpRange::~OpRange()
{
    if (end) CUDA_CHECK("times", cudaEventRecord(end, backend->stream));
    nvtxDomainRangePop(backend->ranges);
}
