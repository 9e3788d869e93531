// SPDX-License-Identifier: Apache-2.0
// Memory of OpenCL: buffers, parts of them, and images, which TVM calls textures.
//
//  * An image has the bytes of its tensor: a pixel is the last axis, of 64 or 128 bits; layers, rows and pixels of a row are
//    the axes before, as the scope divides them. So copies need not know a tensor's shape, and move whole images.
//  * TVM's kernels take arrays of images, so all of ours are such.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "devices/opencl_device.h"
#include "portcall/container.h"
#include "portcall/function.h"

namespace portcall::opencl {
namespace {

std::atomic<bool> images_exist{false};

// ---- Images ---------------------------------------------------------------------------------------------------------

struct Pixels {
  size_t extents[3];  // pixels of a row, rows, layers
};

// How many axes are layers and rows together; 0 for a scope that is no texture.
size_t AxesAbove(std::string_view scope, size_t ndim) {
  if (scope == "global.texture") return ndim < 3 ? 0 : ndim - 2;
  if (scope == "global.texture-nhwc") return ndim < 3 ? 0 : 2;
  return scope == "global.texture-weight" && ndim >= 2 ? 1 : 0;
}

// The last of the axes above is the rows, and those before it are the layers.
Pixels PixelsOf(const DLTensor& tensor, size_t above) {
  Pixels pixels{{1, 1, 1}};
  for (size_t i = 0; i + 1 < static_cast<size_t>(tensor.ndim); ++i) {
    pixels.extents[i + 1 < above ? 2 : i < above ? 1 : 0] *= static_cast<size_t>(tensor.shape[i]);
  }
  return pixels;
}

// Kernels read pixels of 128 bits as four float32, and of 64 bits as four float16, whatever is in them.
Memory NewImage(DLDevice device, const Pixels& pixels, int64_t pixel_bits) {
  PORTCALL_CHECK(pixel_bits == 64 || pixel_bits == 128, ValueError)
      << "an image with pixels of " << pixel_bits
      << " bits (must be 64 or 128): the last axis holds four elements of 16 "
      << "or 32 bits, or eight of 16";
  const ClDevice& opened = DeviceAt(device.device_id);
  PORTCALL_CHECK(opened.Info<Number>(kImageSupport), DeviceError)
      << ToString(device) << " (" << opened.Text(kName) << ") has no images; compile the library for buffers";
  const size_t limits[] = {opened.Info<size_t>(kImageMaxWidth), opened.Info<size_t>(kImageMaxHeight),
                           opened.Info<size_t>(kImageMaxLayers)};
  for (int i = 0; i < 3; ++i) {
    PORTCALL_CHECK(pixels.extents[i] <= limits[i], ValueError)
        << "an image of " << pixels.extents[2] << " layers with " << pixels.extents[1] << " x " << pixels.extents[0]
        << " pixels (on " << ToString(device) << " at most " << limits[2] << " with " << limits[1] << " x " << limits[0]
        << ")";
  }
  const ImageFormat format{kRgba, pixel_bits == 64 ? kHalfFloat : kFloat};
  ImageShape shape{};
  shape.type = kImageArray;
  shape.width = std::max<size_t>(pixels.extents[0], 1);
  shape.height = std::max<size_t>(pixels.extents[1], 1);
  shape.layers = std::max<size_t>(pixels.extents[2], 1);
  Status status = kSuccess;
  Memory image = Cl().CreateImage(opened.context(), kReadWrite, &format, &shape, nullptr, &status);
  CheckStatus(status, "clCreateImage");
  images_exist.store(true, std::memory_order_relaxed);
  return image;
}

size_t ImageInfo(Memory image, Number what) {
  size_t value = 0;
  PORTCALL_CL(GetImageInfo, image, what, sizeof(value), &value, nullptr);
  return value;
}

// One side of a copy on a device.
struct Side {
  Memory memory;
  size_t offset;
  bool image;
  Pixels pixels{};

  Side(const void* data, size_t at, size_t nbytes)
      : memory(static_cast<Memory>(const_cast<void*>(data))), offset(at), image(IsImage(data)) {
    if (!image) return;
    pixels = {{ImageInfo(memory, kImageWidth), ImageInfo(memory, kImageHeight), ImageInfo(memory, kImageLayers)}};
    const size_t whole =
        ImageInfo(memory, kImageElementSize) * pixels.extents[0] * pixels.extents[1] * pixels.extents[2];
    PORTCALL_CHECK(offset == 0 && nbytes == whole, ValueError)
        << "a copy of " << nbytes << " bytes at byte " << offset << " of an image of " << whole << " bytes: images are "
        << "copied whole";
  }
};

constexpr size_t kOrigin[3] = {0, 0, 0};

void CopyWithin(Queue queue, const Side& from, const Side& to, size_t nbytes, Event* event) {
  if (from.image && to.image) {
    PORTCALL_CL(EnqueueCopyImage, queue, from.memory, to.memory, kOrigin, kOrigin, to.pixels.extents, 0, nullptr,
                event);
  } else if (from.image) {
    PORTCALL_CL(EnqueueCopyImageToBuffer, queue, from.memory, to.memory, kOrigin, from.pixels.extents, to.offset, 0,
                nullptr, event);
  } else if (to.image) {
    PORTCALL_CL(EnqueueCopyBufferToImage, queue, from.memory, to.memory, from.offset, kOrigin, to.pixels.extents, 0,
                nullptr, event);
  } else {
    PORTCALL_CL(EnqueueCopyBuffer, queue, from.memory, to.memory, from.offset, to.offset, nbytes, 0, nullptr, event);
  }
}

// They wait: the host's memory may go as soon as this returns.
void Write(Queue queue, const void* from, const Side& to, size_t nbytes, Event* event) {
  if (to.image) {
    PORTCALL_CL(EnqueueWriteImage, queue, to.memory, 1, kOrigin, to.pixels.extents, 0, 0, from, 0, nullptr, event);
  } else {
    PORTCALL_CL(EnqueueWriteBuffer, queue, to.memory, 1, to.offset, nbytes, from, 0, nullptr, event);
  }
}
void Read(Queue queue, const Side& from, void* to, size_t nbytes, Event* event) {
  if (from.image) {
    PORTCALL_CL(EnqueueReadImage, queue, from.memory, 1, kOrigin, from.pixels.extents, 0, 0, to, 0, nullptr, event);
  } else {
    PORTCALL_CL(EnqueueReadBuffer, queue, from.memory, 1, from.offset, nbytes, to, 0, nullptr, event);
  }
}

bool IsOurs(DLDevice device) { return device.device_type == kDLOpenCL; }

// ---- For compiled code ----------------------------------------------------------------------------------------------

// (kind, index, code and bits of the elements, scope, 3, their extents), and since TVM 0.22 the bits of a pixel; before,
// there is 2 for 3, and a pixel is four elements.
void AllocForHostCode(Args args, RetValue* result) {
  PORTCALL_CHECK(args.size() == 7 || args.size() == 8, ArgumentError)
      << args.function() << "() takes 7 or 8 arguments, got " << args.size();
  const int64_t* extents = static_cast<int64_t*>(args[6].cast<void*>());
  PORTCALL_CHECK(extents, ValueError) << args.function() << "(): an image without extents";
  Pixels pixels{};
  for (int i = 0; i < 3; ++i) {
    PORTCALL_CHECK(extents[i] >= 0, ValueError) << args.function() << "(): extent " << extents[i] << " of an image";
    pixels.extents[i] = static_cast<size_t>(extents[i]);
  }
  const int64_t pixel_bits = args.size() == 8 ? args[7].cast<int64_t>() : 4 * args[3].cast<int64_t>();
  *result = static_cast<void*>(NewImage({kDLOpenCL, args[1].cast<int32_t>()}, pixels, pixel_bits));
}

// (kind, index, scope, image): kernels that use the image still run.
void FreeForHostCode(Args args, RetValue* result) {
  PORTCALL_CHECK(args.size() == 4, ArgumentError) << args.function() << "() takes 4 arguments, got " << args.size();
  Check(Free(nullptr, {kDLOpenCL, args[1].cast<int32_t>()}, args[3].cast<void*>()));
  *result = 0;
}

PORTCALL_REGISTER_GLOBAL("device_api.opencl.alloc_nd").set_body(AllocForHostCode);
PORTCALL_REGISTER_GLOBAL("device_api.opencl.free_nd").set_body(FreeForHostCode);

}  // namespace

bool IsImage(const void* data) {
  if (!data || !images_exist.load(std::memory_order_relaxed)) return false;
  Number type = 0;
  PORTCALL_CL(GetMemObjectInfo, static_cast<Memory>(const_cast<void*>(data)), kMemoryType, sizeof(type), &type,
              nullptr);
  return type != kBuffer;
}

// ---- Functions of the table -----------------------------------------------------------------------------------------

int Alloc(void*, DLDevice device, size_t nbytes, size_t, DLDataType, void** out) {
  return Guard([&] {
    Status status = kSuccess;
    *out = Cl().CreateBuffer(DeviceAt(device.device_id).context(), kReadWrite, std::max<size_t>(nbytes, 1), nullptr,
                             &status);
    CheckStatus(status, "clCreateBuffer");
  });
}

int AllocScope(void*, DLDevice device, const DLTensor* like, const char* scope, void** out) {
  return Guard([&] {
    const size_t above = AxesAbove(scope, static_cast<size_t>(like->ndim));
    PORTCALL_CHECK(above, ValueError) << "memory scope '" << scope << "' does not exist on " << ToString(device)
                                      << " for " << like->ndim
                                      << " axes: there are global.texture and global.texture-nhwc, for 3 or more, and "
                                         "global.texture-weight, for 2 or more";
    const int64_t elements = like->shape[like->ndim - 1];
    *out = NewImage(device, PixelsOf(*like, above), elements * like->dtype.bits * like->dtype.lanes);
  });
}

int Free(void*, DLDevice, void* data) {
  return Guard([&] { PORTCALL_CL(ReleaseMemObject, static_cast<Memory>(data)); });
}

int MakeView(void*, DLDevice device, void* data, size_t offset, size_t nbytes, void** out) {
  return Guard([&] {
    PORTCALL_CHECK(!IsImage(data), ValueError) << "a view of an image at byte " << offset << ": images are used whole";
    Status status = kSuccess;
    Region region{offset, std::max<size_t>(nbytes, 1)};
    *out = Cl().CreateSubBuffer(static_cast<Memory>(data), kReadWrite, kRegion, &region, &status);
    PORTCALL_CHECK(status != kMisalignedSubBufferOffset, ValueError)
        << ToString(device) << " cannot view memory at byte " << offset << ": views begin at multiples of "
        << DeviceAt(device.device_id).Info<Number>(kAddressAlignBits) / 8;
    CheckStatus(status, "clCreateSubBuffer");
  });
}

// The stream is one of the first device that is ours.
int Copy(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
         DLDevice to_device, size_t nbytes, void* stream) {
  return Guard([&] {
    if (nbytes == 0) return;
    const bool from_ours = IsOurs(from_device), to_ours = IsOurs(to_device);
    Timed timed;
    if (from_ours && to_ours && from_device.device_id != to_device.device_id) {
      std::vector<char> bytes(nbytes);  // two contexts share no memory
      Check(Copy(ctx, from, from_offset, from_device, bytes.data(), 0, Cpu(), nbytes, stream));
      Check(Copy(ctx, bytes.data(), 0, Cpu(), to, to_offset, to_device, nbytes,
                 TVMFFIEnvGetStream(kDLOpenCL, to_device.device_id)));
    } else if (from_ours && to_ours) {
      CopyWithin(QueueOf(to_device.device_id, stream), {from, from_offset, nbytes}, {to, to_offset, nbytes}, nbytes,
                 timed.out());
    } else if (to_ours) {
      Write(QueueOf(to_device.device_id, stream), static_cast<const char*>(from) + from_offset, {to, to_offset, nbytes},
            nbytes, timed.out());
    } else {
      Read(QueueOf(from_device.device_id, stream), {from, from_offset, nbytes}, static_cast<char*>(to) + to_offset,
           nbytes, timed.out());
    }
  });
}

}  // namespace portcall::opencl
