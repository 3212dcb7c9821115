// prototype: portable forward
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <vector>
#include <random>
#ifndef DIM
#define DIM 64
#endif
#ifndef TQ
#define TQ 128
#endif
#ifndef TKV
#define TKV 64
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef CTAS
#define CTAS 2
#endif
#ifndef QREG
#define QREG 0
#endif
#ifndef ROTATE
#define ROTATE 0
#endif
typedef unsigned u32; typedef unsigned long long u64;
constexpr int THREADS=WARPS*32, ROWS=TQ/WARPS, MB=ROWS/16, NT=TKV/8, KT=DIM/16, DT=DIM/8, CH=DIM/8;
__device__ __forceinline__ u32 smem_at(const void*p){return (u32)__cvta_generic_to_shared(p);}
__device__ __forceinline__ void ldm4(u32(&r)[4],u32 a){asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];":"=r"(r[0]),"=r"(r[1]),"=r"(r[2]),"=r"(r[3]):"r"(a));}
__device__ __forceinline__ void ldm4t(u32(&r)[4],u32 a){asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];":"=r"(r[0]),"=r"(r[1]),"=r"(r[2]),"=r"(r[3]):"r"(a));}
__device__ __forceinline__ void mma(float(&d)[4],const u32(&a)[4],u32 b0,u32 b1){asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};":"+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]):"r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"r"(b0),"r"(b1));}
__device__ __forceinline__ void cpa(u32 d,const void*s,int n){asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;"::"r"(d),"l"(s),"r"(n));}
__device__ __forceinline__ void commit(){asm volatile("cp.async.commit_group;");}
template<int N>__device__ __forceinline__ void waitg(){asm volatile("cp.async.wait_group %0;"::"n"(N));}
__device__ __forceinline__ float ex2(float x){float y;asm("ex2.approx.ftz.f32 %0,%1;":"=f"(y):"f"(x));return y;}
__device__ __forceinline__ u32 pack(float lo,float hi){u32 r;asm("cvt.rn.bf16x2.f32 %0,%1,%2;":"=r"(r):"f"(hi),"f"(lo));return r;}
__device__ __forceinline__ u32 at(u32 base,int row,int ch){return base+(row*CH+(ch^(row&7)))*16;}
struct P{const __nv_bfloat16*q,*k,*v;__nv_bfloat16*o;float*lse;int b,h,n;float scale_log2;int causal;};
template<int R>__device__ __forceinline__ void load(u32 base,const __nv_bfloat16*g,long stride,int first,int n){
 #pragma unroll
 for(int i=0;i<R*CH/THREADS;i++){int c=threadIdx.x+i*THREADS;int row=c/CH,ch=c%CH;int r=first+row;bool in=r<n;cpa(at(base,row,ch),g+(long)(in?r:0)*stride+ch*8,in?16:0);} }
__global__ void __launch_bounds__(THREADS,CTAS) fwd(P p){
 extern __shared__ __align__(1024) unsigned char sm[];
 const u32 sq=smem_at(sm), sk=sq+TQ*DIM*2, sv=sk+STAGES*TKV*DIM*2;
 const int w=threadIdx.x/32,l=threadIdx.x%32;
 const u32 krow=((l&7)+((l>>4)<<3))*CH*16, kx=(((l>>3)&1)^(l&7))<<4, vrow=(l%16)*CH*16, vx=((l/16)^(l&7))<<4, qrow=(w*ROWS+l%16)*CH*16;
 const int tiles=(p.n+TQ-1)/TQ; const int qt=p.causal?tiles-1-blockIdx.x:blockIdx.x; const int h=blockIdx.y,b=blockIdx.z;
 const long st=(long)p.h*DIM; const long base=((long)b*p.n*p.h+h)*DIM;
 const int q0=qt*TQ; const int end=p.causal?min(p.n,q0+TQ):p.n; const int kts=(end+TKV-1)/TKV;
 load<TQ>(sq,p.q+base,st,q0,p.n);
 constexpr int RS=THREADS/CH, LI=TKV/RS;
 const int lr=threadIdx.x/CH, lc=threadIdx.x%CH; const u32 loff=(lr*CH+(lc^(lr&7)))*16;
 const __nv_bfloat16* kp=p.k+base+(long)lr*st+lc*8; const __nv_bfloat16* vp=p.v+base+(long)lr*st+lc*8;
 const int rstep=RS*(int)st;
 auto fetch=[&](int j){ if(j<kts){ const u32 ks=sk+(j%STAGES)*TKV*DIM*2+loff, vs=sv+(j%STAGES)*TKV*DIM*2+loff;
   if((j+1)*TKV<=p.n){
    #pragma unroll
    for(int i=0;i<LI;i++){cpa(ks+i*RS*CH*16,kp+i*rstep,16);}
    #pragma unroll
    for(int i=0;i<LI;i++){cpa(vs+i*RS*CH*16,vp+i*rstep,16);}
   } else {
    #pragma unroll
    for(int i=0;i<LI;i++){bool in=j*TKV+lr+i*RS<p.n;cpa(ks+i*RS*CH*16,in?kp+i*rstep:kp,in?16:0);cpa(vs+i*RS*CH*16,in?vp+i*rstep:vp,in?16:0);}
   }
   kp+=(long)TKV*st; vp+=(long)TKV*st; } commit();};
 #pragma unroll
 for(int j=0;j<STAGES-1;j++) fetch(j);
 float o[MB][DT][4]={},mx[MB][2],sum[MB][2];
 #pragma unroll
 for(int m=0;m<MB;m++){mx[m][0]=mx[m][1]=-INFINITY;sum[m][0]=sum[m][1]=0;}
#if QREG
 u32 qf[MB][KT][4];
 waitg<STAGES-2>(); __syncthreads();
 #pragma unroll
 for(int m=0;m<MB;m++)
 #pragma unroll
 for(int k=0;k<KT;k++) ldm4(qf[m][k],at(sq,w*ROWS+m*16+l%16,k*2+l/16));
#endif
 for(int j=0;j<kts;j++){
  waitg<STAGES-2>(); __syncthreads();
  fetch(j+STAGES-1);
  const u32 kb=sk+(j%STAGES)*TKV*DIM*2, vb=sv+(j%STAGES)*TKV*DIM*2;
  float s[MB][NT][4]={};
  #pragma unroll
  for(int k=0;k<KT;k++){
#if !QREG
   u32 a[MB][4];
   #pragma unroll
   for(int m=0;m<MB;m++) ldm4(a[m],sq+qrow+m*16*CH*16+(((k*2)<<4)^vx));
#endif
   #pragma unroll
   for(int n=0;n<NT/2;n++){u32 bb[4]; ldm4(bb,kb+krow+n*16*CH*16+(((k*2)<<4)^kx));
    #pragma unroll
    for(int m=0;m<MB;m++){
#if QREG
     mma(s[m][2*n],qf[m][k],bb[0],bb[1]);mma(s[m][2*n+1],qf[m][k],bb[2],bb[3]);
#else
     mma(s[m][2*n],a[m],bb[0],bb[1]);mma(s[m][2*n+1],a[m],bb[2],bb[3]);
#endif
    }}
  }
  const bool partial=(p.causal&&(j+1)*TKV>q0+1)||(j+1)*TKV>p.n;
  if(partial){
   #pragma unroll
   for(int m=0;m<MB;m++)
   #pragma unroll
   for(int n=0;n<NT;n++)
   #pragma unroll
   for(int e=0;e<4;e++){int col=j*TKV+n*8+(l%4)*2+(e&1);int row=q0+w*ROWS+m*16+l/4+(e>>1)*8; if(col>=p.n||(p.causal&&col>row)) s[m][n][e]=-INFINITY;}
  }
  #pragma unroll
  for(int m=0;m<MB;m++)
  #pragma unroll
  for(int r=0;r<2;r++){
   float t=mx[m][r];
   #pragma unroll
   for(int n=0;n<NT;n++) t=fmaxf(t,fmaxf(s[m][n][2*r],s[m][n][2*r+1]));
   t=fmaxf(t,__shfl_xor_sync(~0u,t,1));t=fmaxf(t,__shfl_xor_sync(~0u,t,2));
   const float old=mx[m][r]; mx[m][r]=t; const float z=t==-INFINITY?0.f:t*p.scale_log2; const float f=ex2(old*p.scale_log2-z);
   float acc=sum[m][r]*f;
   #pragma unroll
   for(int n=0;n<NT;n++){
    s[m][n][2*r]=ex2(s[m][n][2*r]*p.scale_log2-z);s[m][n][2*r+1]=ex2(s[m][n][2*r+1]*p.scale_log2-z);acc+=s[m][n][2*r]+s[m][n][2*r+1];}
   sum[m][r]=acc;
   #pragma unroll
   for(int d=0;d<DT;d++){o[m][d][2*r]*=f;o[m][d][2*r+1]*=f;}
  }
  #pragma unroll
  for(int k=0;k<TKV/16;k++){
   u32 a[MB][4];
   #pragma unroll
   for(int m=0;m<MB;m++){a[m][0]=pack(s[m][2*k][0],s[m][2*k][1]);a[m][1]=pack(s[m][2*k][2],s[m][2*k][3]);a[m][2]=pack(s[m][2*k+1][0],s[m][2*k+1][1]);a[m][3]=pack(s[m][2*k+1][2],s[m][2*k+1][3]);}
   #pragma unroll
   for(int d=0;d<DT/2;d++){u32 bb[4]; ldm4t(bb,vb+vrow+k*16*CH*16+(((d*2)<<4)^vx));
    #pragma unroll
    for(int m=0;m<MB;m++){mma(o[m][2*d],a[m],bb[0],bb[1]);mma(o[m][2*d+1],a[m],bb[2],bb[3]);}}
  }
 }
 #pragma unroll
 for(int m=0;m<MB;m++)
 #pragma unroll
 for(int r=0;r<2;r++){
  float t=sum[m][r];t+=__shfl_xor_sync(~0u,t,1);t+=__shfl_xor_sync(~0u,t,2);
  const float inv=t>0?1/t:0; const int row=q0+w*ROWS+m*16+l/4+r*8;
  if(row<p.n){
   if(l%4==0) p.lse[((long)b*p.h+h)*p.n+row]=t>0?mx[m][r]*p.scale_log2*0.6931471805599453f+logf(t):-INFINITY;
   #pragma unroll
   for(int d=0;d<DT;d++) *(u32*)(p.o+base+(long)row*st+d*8+(l%4)*2)=pack(o[m][d][2*r]*inv,o[m][d][2*r+1]*inv);
  }}
}
int main(int c,char**v){
 struct{int n,b,h;}cells[]={{1024,16,DIM==64?32:16},{4096,4,DIM==64?32:16},{16384,1,DIM==64?32:16}};
 for(auto ce:cells)for(int causal=0;causal<2;causal++){
 size_t N=(size_t)ce.b*ce.n*ce.h*DIM; std::vector<__nv_bfloat16> hq(N),hk(N),hv(N); std::mt19937 g(1);
 for(size_t i=0;i<N;i++){auto r=[&]{u32 x=g();float u=0;for(int s=0;s<4;s++)u+=(x>>(8*s))&255;return (u-510)/147.f;};hq[i]=__float2bfloat16(r());hk[i]=__float2bfloat16(r());hv[i]=__float2bfloat16(r());}
 P p;p.b=ce.b;p.h=ce.h;p.n=ce.n;p.causal=causal;p.scale_log2=1.4426950408889634f/sqrtf(DIM);
 cudaMalloc((void**)&p.q,N*2);cudaMalloc((void**)&p.k,N*2);cudaMalloc((void**)&p.v,N*2);cudaMalloc(&p.o,N*2);cudaMalloc(&p.lse,N/DIM*4);
 cudaMemcpy((void*)p.q,hq.data(),N*2,cudaMemcpyHostToDevice);cudaMemcpy((void*)p.k,hk.data(),N*2,cudaMemcpyHostToDevice);cudaMemcpy((void*)p.v,hv.data(),N*2,cudaMemcpyHostToDevice);
 int smem=(TQ+2*STAGES*TKV)*DIM*2; cudaFuncSetAttribute(fwd,cudaFuncAttributeMaxDynamicSharedMemorySize,smem);
 dim3 grid((ce.n+TQ-1)/TQ,ce.h,ce.b);
 for(int i=0;i<3;i++)fwd<<<grid,THREADS,smem>>>(p);
 cudaEvent_t a,e;cudaEventCreate(&a);cudaEventCreate(&e); float best=1e9,tot=0;
 for(int i=0;i<15;i++){cudaEventRecord(a);fwd<<<grid,THREADS,smem>>>(p);cudaEventRecord(e);cudaEventSynchronize(e);float ms;cudaEventElapsedTime(&ms,a,e);best=fminf(best,ms);tot+=ms;}
 if(cudaGetLastError()!=cudaSuccess){printf("error %s\n",cudaGetErrorString(cudaGetLastError()));return 1;}
 double fl=4.0*ce.b*ce.h*(double)ce.n*ce.n*DIM*(causal?0.5:1);
 std::vector<__nv_bfloat16> ho(N);cudaMemcpy(ho.data(),p.o,N*2,cudaMemcpyDeviceToHost);
 double err=0;for(int t=0;t<8;t++){int row=(int)((long)t*977%ce.n),h=t%ce.h,b=t%ce.b;size_t B=((size_t)b*ce.n*ce.h+h)*DIM,S=(size_t)ce.h*DIM;int m=causal?row+1:ce.n;std::vector<double>s(m);double mx=-1e30,su=0;for(int j=0;j<m;j++){double x=0;for(int d=0;d<DIM;d++)x+=(double)__bfloat162float(hq[B+row*S+d])*__bfloat162float(hk[B+j*S+d]);s[j]=x/sqrt(DIM);mx=fmax(mx,s[j]);}for(auto&x:s){x=exp(x-mx);su+=x;}for(int d=0;d<DIM;d++){double x=0;for(int j=0;j<m;j++)x+=s[j]*__bfloat162float(hv[B+j*S+d]);err=fmax(err,fabs(x/su-__bfloat162float(ho[B+row*S+d])));}}
 printf("d%d tq%d tkv%d w%d st%d cta%d qreg%d n%d causal%d: mean %.1f best %.1f TFLOP/s err %.2e\n",DIM,TQ,TKV,WARPS,STAGES,CTAS,QREG,ce.n,causal,fl/(tot/15)/1e9,fl/best/1e9,err);
 cudaFree((void*)p.q);cudaFree((void*)p.k);cudaFree((void*)p.v);cudaFree(p.o);cudaFree(p.lse);}
}
